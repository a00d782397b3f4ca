"""Two processes do not write into one folder of results."""

import subprocess
import sys
import time

import pytest

from datapm_rl.errors import UserError
from datapm_rl.tracking.lock import only_process

pytestmark = pytest.mark.unit

HOLD = """
import sys, time
from pathlib import Path
from datapm_rl.tracking.lock import only_process
with only_process(Path(sys.argv[1]), "another"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_second_process_is_refused_until_the_first_is_gone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="or give another --out"), only_process(tmp_path, "another --out"):
            pass
        other.kill()
    for _ in range(50):
        try:
            with only_process(tmp_path, ""):
                return
        except UserError:
            time.sleep(0.1)
    pytest.fail("the lock outlived its process")
