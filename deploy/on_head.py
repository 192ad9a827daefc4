"""What ``ray submit`` uploads: runs a penumbra command in the checkout on the head node and ends with its exit code."""

from __future__ import annotations

import os
import sys

os.chdir(os.path.expanduser(os.environ.get("PENUMBRA_HOME", "~/penumbra")))
os.execv(sys.executable, [sys.executable, "-m", "services", *sys.argv[1:]])
