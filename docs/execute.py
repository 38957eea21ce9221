"""Execute a tutorial or an example and write its notebook beside it: `python docs/execute.py FILE`.

The notebook holds what is shown and nothing else that changes from run to run, such as times or
random names of cells. So git shows a change of a tutorial where its output has changed.
"""

import io
import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

#: Colours of a picture, which make it a quarter as large as it is with all of them.
COLOURS = 64


def execute(source: Path) -> NotebookNode:
    """The notebook of a script, executed where the script is."""
    notebook = jupytext.read(source)
    # jupytext makes random names.
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    folder = {"metadata": {"path": str(source.parent)}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=None, resources=folder)
    client.record_timing = False
    client.coalesce_streams = True  # else the pieces of a text depend on the load
    client.execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = _smaller(picture)
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
    }
    return notebook


def _smaller(picture: str) -> str:
    image = Image.open(io.BytesIO(b64decode(picture))).convert("RGB")
    file = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    script = Path(sys.argv[1])
    executed = execute(script)  # which raises an error where a cell does
    # In one step, as the site's build may read the notebook now.
    unfinished = script.with_suffix(".ipynb.tmp")
    nbformat.write(executed, unfinished)
    os.replace(unfinished, script.with_suffix(".ipynb"))
