"""``examples/notebook.ipynb`` runs in Jupyter from its first cell to its last."""

import pytest

from tests.support.paths import ROOT

PATH = ROOT / "examples" / "notebook.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    """It shows a table of the evaluations, learns, and its resumed run has the weights of the whole one."""
    nbformat = pytest.importorskip("nbformat", reason='nbformat is missing: pip install "hf-compat[test]"')
    nbclient = pytest.importorskip("nbclient", reason='nbclient is missing: pip install "hf-compat[test]"')
    pytest.importorskip("ipykernel", reason='ipykernel is missing: pip install "hf-compat[test]"')
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.read(PATH, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what is committed is the source alone
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=1200, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    tables = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("<table" in table and "Accuracy" in table for table in tables)
    last = notebook.cells[-1].outputs[-1].text
    assert last.endswith("the weights are equal: True\n")
    assert float(last.split()[1].rstrip("%;")) > 90
