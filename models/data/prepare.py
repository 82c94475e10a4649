"""Makes the data files of this folder from their sources.

    pip install scikit-learn==1.7.2; apt-get download dict-devil; dpkg-deb -x dict-devil*.deb devil
    python models/data/prepare.py --devil devil/usr/share/dictd/devil.dict.dz
"""

import argparse
import gzip
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
NUM_TRAIN = 1437  # of 1,797


def write_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    for name, part in ("train", slice(None, NUM_TRAIN)), ("test", slice(NUM_TRAIN, None)):
        np.savez_compressed(HERE / f"digits_{name}.npz", image=images[part], labels=labels[part])


def write_text(dictionary):
    """Takes what dictfmt added (the header, the index of letters at the end) off the text."""
    text = gzip.open(dictionary, "rt", encoding="ascii").read()
    body = text[text.index("PREFACE\n") :].rstrip().removesuffix("abcdefghijklmnopqrstuvwxyz").rstrip()
    lines = [line.rstrip() for line in body.splitlines()]
    (HERE / "devils_dictionary.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devil", help="devil.dict.dz of Debian's package dict-devil")
    arguments = parser.parse_args()
    write_digits()
    if arguments.devil:
        write_text(arguments.devil)
