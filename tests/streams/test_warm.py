"""What can be compiled is compiled before the first record comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import naive
from driftline.streams import warm
from driftline.streams.kernels import fold, merge
from driftline.streams.pipeline import Pipeline


def forms():
    loops = {name: loop for part in (fold, merge) for name, loop in vars(part).items()}
    return {name: len(loop.signatures) for name, loop in loops.items() if hasattr(loop, "py_func")}


warm.up()
ready = forms()
assert len(ready) > 20
assert all(count == 1 for name, count in ready.items() if not name.startswith("_")), ready
pipeline = Pipeline()
for seed in range(4):
    records = naive.make_log(seed, ranks=2, seconds=9)
    state = pipeline.fresh("uuid", 0)
    assert any(output.topic == "windows" for output in pipeline.step(state, records))
    pipeline.load(pipeline.dump(state))
assert forms() == ready, forms()
print("nothing more was compiled")
"""


def test_after_the_warm_up_no_log_makes_anything_be_compiled() -> None:
    """Each loop is there in one form; random logs with all oddities need no other."""
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", CODE, tests], capture_output=True, text=True, check=False)
    assert done.stdout == "nothing more was compiled\n", done.stderr
