"""Extra memory O(n + cd) beyond inputs, outputs and gradient: no n x c, no second n x d."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch, carlg_kernels as ck
torch.manual_seed(0)
n, c, d = 300_000, 500, 32
z, labels = torch.randn(n, d).to(torch.{dtype}), torch.randint(0, c, (n,))
z.requires_grad_()
call = lambda x, y: {call}
call(z[:2000], labels[:2000]).backward()
z.grad = None
# getrusage reports a high-water mark: a large block, touched and freed, would hide the call, so measure the current size instead
import threading, time
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
before, peak, stop = resident(), 0, False
def watch():
    global peak
    while not stop:
        peak = max(peak, resident())
        time.sleep(0.0005)
thread = threading.Thread(target=watch); thread.start()
call(z, labels).backward()
stop = True; thread.join()
print("EXTRA", (peak - before) / 2**20)
"""

# the gradient is 37 MB in float32 and 18 MB in half; the table n x c would be 572 MB, another n x d in float32 37 MB
CASES = {
    "silhouette": ("ck.simplified_silhouette(x, labels=y)", "float32", 37 + 25),
    "silhouette per point": ("ck.simplified_silhouette(x, labels=y, reduction='none').sum()", "float32", 37 + 30),
    "silhouette in half": ("ck.simplified_silhouette(x, labels=y)", "bfloat16", 18 + 20),
    "variance ratio": ("ck.variance_ratio(x, y)", "float32", 37 + 15),
    "davies-bouldin": ("ck.davies_bouldin(x, y)", "float32", 37 + 15),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_extra_memory(case):
    call, dtype, limit = CASES[case]
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(call=call, dtype=dtype)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
    extra = float(done.stdout.split("EXTRA")[1])
    assert extra < limit, f"{extra:.0f} MB, allowed {limit}"
