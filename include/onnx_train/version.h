/* The version of these headers. */
#ifndef ONNX_TRAIN_VERSION_H
#define ONNX_TRAIN_VERSION_H

#define ONNX_TRAIN_VERSION "0.1.0"

#endif /* ONNX_TRAIN_VERSION_H */
