"""`tracekit next` prints a script with the suspects and the groups of the mesh in it."""

import ast
import json


def planned(script):
    """The plan in a script, which is compiled and not run."""
    (plan,) = (
        node.value.args[0].value
        for node in ast.parse(script).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PLAN"
    )
    return json.loads(plan)


def test_script_tests_the_suspect_beside_its_peers(tracekit, slow):
    done = tracekit("next", slow[0], "--quiet")
    plan = planned(done.out)
    assert done.code == 0
    assert set(plan["suspects"]) <= slow[1].suspects
    assert all(len(groups) > 1 for groups in plan["groups"].values())
    assert plan["why"].startswith("slow_rank: ")


def test_script_holds_no_text_of_traces_as_code(tmp_path):
    from tracekit_cli.tracekit_commands.next_probe import script_of

    class Finding:
        suspects = candidates = ()

        def headline(self):
            return '"""\nimport os\nos.abort()\n\'); import os #\\'

    assert planned(script_of(Finding(), None)) == {
        "suspects": [], "groups": {}, "why": Finding().headline(),
    }  # fmt: skip
