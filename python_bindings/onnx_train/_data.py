"""Data files, read by the library as for the command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _core
from ._errors import UsageError
from ._options import options_of, reading_options
from ._session import Session
from ._tables import as_file

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def split_rows(
    samples: int,
    *,
    val_split: float | None = None,
    folds: int | None = None,
    fold: int | None = None,
    skip: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The rows on which `fit` trains with these arguments, and those on which it evaluates, for metrics of your own.

    Args:
        samples: the number of all.
        val_split, folds, fold, skip, limit, seed: as given to `fit`.

    Returns:
        Both in ascending order.

    >>> import numpy as np
    >>> import onnx_train
    >>> x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    >>> data = {"x": x, "labels": (x[:, 0] > 0).astype(np.int64)}
    >>> history = onnx_train.fit(onnx_train.build("mlp.onnx"), data, epochs=1, batch_size=10, val_split=0.25, seed=3)
    >>> _, held_out = onnx_train.split_rows(40, val_split=0.25, seed=3)
    >>> logits = history.session.predict(x[held_out]).logits
    >>> mistakes = (logits.argmax(1) != data["labels"][held_out]).sum()
    >>> len(held_out), bool(mistakes <= 10)
    (10, True)
    """
    import numpy as np

    options = options_of(skip=skip, limit=limit, val_split=val_split, folds=folds, fold=fold, seed=seed)
    training, evaluation = _core.split(samples, options)
    return np.array(training, np.int64), np.array(evaluation, np.int64)


def load_data(
    path: str | os.PathLike[str], model: Any = None, *, entry: str | None = None, **reading: Any
) -> dict[str, Array]:
    """The arrays at a path: all that ``--data`` of the command takes, read by the same code.

    Those are ``X.npz``, a folder of ``.npy`` files, ``X.csv``, ``X.libsvm``, the files of MNIST (a folder, or ``IMAGES,LABELS``), and
    those of CIFAR-10 (a folder, or ``X.bin``), and files of tokens: see docs/training.md. Pictures with their
    classes, masks or boxes (docs/data.md) are given as the network reads them, all in memory. `fit`, `Session.evaluate` and
    `Session.predict` take such a path themselves.

    Args:
        path: of the data.
        model: a `Session`, or anything that a session is made of: the arrays are those of its inputs. Formats that do
            not name their arrays, which are all but .npz and .npy, need it; without it all arrays are given.
        entry: the entry point whose inputs are read; by default that which trains, or ``predict`` where the model has
            none. Of a folder with files for both, ``evaluate`` and ``predict`` read those for tests.
        reading: how files are read, as `fit` takes it: `block_size`, `shift_labels`, `document_end`, `tokenizer`, `packing`, `token_type`, `missing`, `columns`,
            `map`, `on_bad_picture`, `mask_values`, `label_separator`.

    Returns:
        The arrays by name in the element types of the files, read-only: views of mapped files, which are not to be
        changed meanwhile, or of memory that the arrays own where files are compressed, text or tokens. bfloat16, which
        numpy does not have, is float32 with the same values.

    Raises:
        FileError: for a file that is missing, damaged or of no such format.
        DataError: for an array that the model needs and the files do not have, or that does not fit the model.
        UsageError: for files that do not name their arrays, such as pictures, without a model.

    >>> import numpy as np
    >>> import onnx_train
    >>> np.savez("train.npz", x=np.eye(4, dtype=np.float32), labels=np.array([0, 1, 2, 0]))
    >>> onnx_train.load_data("train.npz")["labels"].tolist()
    [0, 1, 2, 0]
    >>> with open("train.csv", "w") as file:
    ...     file.write("a,b,c,d,labels\\n0.5,1,2,3,0\\n4,5,6,7,1\\n") > 0
    True
    >>> training = onnx_train.build("mlp.onnx")
    >>> {name: array.shape for name, array in onnx_train.load_data("train.csv", training).items()}
    {'labels': (2,), 'x': (2, 4)}
    """
    if model is not None:
        session = model if isinstance(model, Session) else Session(model)
        with as_file(path) as file:
            return session._core.open_data(file, entry, reading_options(**reading)).arrays()
    if entry is not None:
        raise UsageError(f"the entry point '{entry}' has no model")
    return _core.open_data(os.fspath(path)).arrays()
