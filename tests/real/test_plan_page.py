"""The HTML page of a plan in a real, headless Chromium: it draws, answers to pointing, and complains of nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main

NAMES = ("chromium", "chromium-browser", "google-chrome")
BINARY = next((found for name in NAMES if (found := shutil.which(name))), None)
POINT = """<script>
const dots = document.querySelectorAll("figure[data-chart] circle[data-told]");
dots[0].dispatchEvent(new MouseEvent("mouseenter"));
document.title = [dots.length, document.querySelector(".told").textContent === dots[0].dataset.told].join(" ");
</script></body>"""


@pytest.mark.skipif(BINARY is None, reason="no Chromium here: apt-get install chromium")
def test_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "plan.html"
    asked = ["ridgeline", "plan", "llama3-8b", "--on", "h100-sxm", "--chips", "8..32", "--global-batch", "64"]
    monkeypatch.setattr(sys, "argv", [*asked, "--set", "plan.pp=1", "--html", str(page), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    pointed = tmp_path / "pointed.html"
    pointed.write_text(page.read_text(encoding="utf-8").replace("</body>", POINT), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(BINARY), *flags, "--enable-logging=stderr", "--dump-dom", pointed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    title = done.stdout.split("<title>")[1].split("</title>")[0].split()
    assert int(title[0]) >= 5  # at least the frontier and three sizes
    assert title[1] == "true"
