"""The files of the repository over HTTP, for pages in a browser, and ONNX Runtime behind bindings/web/tests/ort_over_http.js."""

import contextlib
import http.server
import itertools
import json
import struct
import threading

import numpy as np
import onnxruntime
import tool

DTYPES = {"F32": "float32", "F64": "float64", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
          "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool"}  # fmt: skip
NAMES = {name: dtype for dtype, name in DTYPES.items()}


def arrays_of(data):
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size + of["data_offsets"][0] : 8 + size + of["data_offsets"][1]], DTYPES[of["dtype"]])
        .reshape(of["shape"]) for name, of in header.items()
    }  # fmt: skip


def safetensors_of(arrays):
    header, parts, at = {}, [], 0
    for name, array in arrays.items():
        parts.append(np.ascontiguousarray(array).tobytes())
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


@contextlib.contextmanager
def serve(files=None):
    """Gives the address of the repository's root; `files` are further ones, bytes by path."""
    sessions, numbers = {}, itertools.count()

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}

        def __init__(self, *arguments):
            super().__init__(*arguments, directory=tool.ROOT)

        def log_message(self, *arguments):
            pass

        def answer(self, body, status=200, kind="application/octet-stream"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            path = self.path.partition("?")[0]
            content = (files or {}).get(path)
            if content is None:
                return super().do_GET()
            return self.answer(content, kind=self.guess_type(path))

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            _, _, what, *number = self.path.split("/")
            try:
                if what == "create":
                    options = onnxruntime.SessionOptions()
                    options.log_severity_level, options.intra_op_num_threads = 4, 1
                    number = [str(next(numbers))]
                    sessions[number[0]] = onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])
                    self.answer(json.dumps({"id": number[0]}).encode())
                elif what == "run":
                    session = sessions[number[0]]
                    names = [output.name for output in session.get_outputs()]
                    self.answer(safetensors_of(dict(zip(names, session.run(names, arrays_of(body))))))
                else:
                    del sessions[number[0]]
                    self.answer(b"")
            except Exception as error:  # as onnxruntime-web throws it
                self.answer(str(error).encode(), 400, "text/plain")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
