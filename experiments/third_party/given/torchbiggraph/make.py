"""5000 edges between 300 nodes, brought into the package's own form by its own importer."""

import random
import subprocess
import sys
from pathlib import Path

draw = random.Random(0)
with Path("edges.tsv").open("w") as file:
    for _ in range(5000):
        begin = draw.randint(0, 299)
        end = (begin + draw.randint(1, 9)) % 300
        file.write(f"n{begin}\tnear\tn{end}\n")
importer = Path(sys.executable).with_name("torchbiggraph_import_from_tsv")
columns = ["--lhs-col=0", "--rel-col=1", "--rhs-col=2"]
subprocess.run([str(importer), *columns, "config.py", "edges.tsv"], check=True)
