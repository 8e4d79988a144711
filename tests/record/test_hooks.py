import pickle

from reftrain.config.file import load
from reftrain.job.launcher import launch


def test_a_trainer_run_leaves_one_dump_per_rank(tmp_path):
    config = load(
        None,
        {
            "run": {"steps": 2, "out": str(tmp_path)},
            "model": {"preset": "tiny"},
            "mesh": {"pp": 2},
            "evidence": {"timeout_s": 100.0, "flight_recorder": True},
        },
    )
    launch(config, lambda rank: [])
    assert sorted(p.name for p in (tmp_path / "fr").iterdir()) == ["rank_0", "rank_1"]
    dumps = [pickle.loads((tmp_path / "fr" / f"rank_{rank}").read_bytes()) for rank in range(2)]
    sent, received = (
        [e["profiling_name"] for e in dump["entries"] if e["is_p2p"] and kind in e["profiling_name"]]
        for dump, kind in zip(dumps, ("send 0->1", "recv 1<-0"), strict=True)
    )
    assert len(sent) == len(received) > 0
    assert all(e["retired"] for dump in dumps for e in dump["entries"] if e["is_p2p"])
    assert any(g["ranks"] == "[0, 1]" and g["desc"] for g in dumps[0]["pg_config"].values())
