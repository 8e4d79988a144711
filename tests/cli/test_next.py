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
        "suspects": [], "groups": {}, "hosts": {}, "why": Finding().headline(),
    }  # fmt: skip


def test_script_starts_each_rank_on_its_host(tracekit, slow, tmp_path):
    (tmp_path / "hosts").write_text("node01 slots=2\nnode02 slots=2\n")
    script = tracekit("next", slow[0], "--hosts", tmp_path / "hosts", "--quiet").out
    command = "torchrun --nnodes 2 --nproc-per-node 2 --node-rank 1 --master-addr node01"
    assert f"#   node02:  {command} " in script
    expected = {str(rank): f"node0{1 + rank // 2}" for rank in planned(script)["suspects"]}
    assert planned(script)["hosts"] == expected


def test_names_that_are_no_hosts_are_not_printed():
    from tracekit_cli.tracekit_commands.next_probe import script_of

    from tests.slowrank.jobs import grid

    class Finding:
        suspects = candidates = ()

        def headline(self):
            return "healthy"

    script = script_of(Finding(), grid(dp=2), {0: "a\nimport os", 1: "node1"})
    assert "import os\n#" not in script
    assert "node1" not in script
