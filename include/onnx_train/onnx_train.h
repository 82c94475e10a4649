/* The C interface of onnx-train: models in, training models out, sessions that run them.
 *
 * Handles are opaque; the caller owns each that a function gives and frees it with the function of its type, which
 * takes null, too. A function that can fail returns a status; the text of the last failure of the calling thread is
 * onnx_train_last_error(). What a function gives is written only when it returns ONNX_TRAIN_OK. No function throws.
 *
 * Threads: a model may be read by any number of threads at once. A session belongs to one thread at a time; a call from
 * another one while it works returns ONNX_TRAIN_USAGE. Sessions share nothing that changes.
 *
 * Strings are UTF-8 and end with a zero byte. The layout of the structs and the numbers below never change within one
 * major version of the library. */
#ifndef ONNX_TRAIN_H
#define ONNX_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "onnx_train/version.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The library's version, "0.1.0": that of version.h, which the program was compiled with, or a later one. */
const char* onnx_train_version(void);

/* ---- Errors */

typedef enum onnx_train_status {
  ONNX_TRAIN_OK = 0,
  ONNX_TRAIN_USAGE = 1,       /* an argument that is wrong whatever the model holds */
  ONNX_TRAIN_FILE = 2,        /* cannot be read or written, or does not hold what it should */
  ONNX_TRAIN_UNSUPPORTED = 3, /* the model, or what is asked of it */
  ONNX_TRAIN_DATA = 4,        /* inputs of a run: names, types, shapes, numbers out of range */
  ONNX_TRAIN_MEMORY = 5,      /* not enough */
  ONNX_TRAIN_DEVICE = 6,      /* is not there, or failed */
  ONNX_TRAIN_INTERNAL = 7     /* a bug of the library */
} onnx_train_status;

/* One line that names the node, tensor or file, what was found, and what to do. Valid until the next failure of the
 * calling thread; "" before the first. */
const char* onnx_train_last_error(void);

/* ---- Tensors */

/* The numbers of ONNX's TensorProto.DataType. */
typedef enum onnx_train_type {
  ONNX_TRAIN_FLOAT = 1,
  ONNX_TRAIN_UINT8 = 2,
  ONNX_TRAIN_INT8 = 3,
  ONNX_TRAIN_UINT16 = 4,
  ONNX_TRAIN_INT16 = 5,
  ONNX_TRAIN_INT32 = 6,
  ONNX_TRAIN_INT64 = 7,
  ONNX_TRAIN_BOOL = 9,
  ONNX_TRAIN_FLOAT16 = 10,
  ONNX_TRAIN_DOUBLE = 11,
  ONNX_TRAIN_UINT32 = 12,
  ONNX_TRAIN_UINT64 = 13,
  ONNX_TRAIN_BFLOAT16 = 16
} onnx_train_type;

/* A dense tensor in row-major order that somebody else owns. `shape` has `rank` sizes and may be null for a scalar. */
typedef struct onnx_train_tensor {
  const char* name;
  onnx_train_type type;
  int32_t rank;
  const int64_t* shape;
  void* data;
} onnx_train_tensor;

/* ---- Models: forward models, training models, checkpoints; each is one ONNX model */

typedef struct onnx_train_model onnx_train_model;

/* Reads an .onnx file; its large tensors are mapped, so the file must not be changed in place while the model lives. */
onnx_train_status onnx_train_model_load(const char* path, onnx_train_model** model);
/* The same from `bytes` bytes in memory, which are copied. The model must hold all its data. */
onnx_train_status onnx_train_model_from_bytes(const void* data, size_t bytes, onnx_train_model** model);
void onnx_train_model_free(onnx_train_model* model);

/* Writes the model atomically: an existing file is complete and old, or complete and new. */
onnx_train_status onnx_train_model_save(const onnx_train_model* model, const char* path);
/* The serialized model, at most 2 GiB; free `data` with onnx_train_free. */
onnx_train_status onnx_train_model_to_bytes(const onnx_train_model* model, void** data, size_t* bytes);
void onnx_train_free(void* data);

/* An option by the name and in the form that the command `onnx-train build` takes: {"loss", "cross_entropy"},
 * {"optimizer", "adamw(weight_decay=0.01)"}, {"freeze", "embeddings.*,encoder.layer.0.*"}, {"accumulate", "true"}. A
 * list is given by commas or by several options of one name. */
typedef struct onnx_train_option {
  const char* name;
  const char* value;
} onnx_train_option;

/* A training model from a forward model: loss, gradients, optimizer and their state. `options` may be null when `count`
 * is 0. */
onnx_train_status onnx_train_model_build(const onnx_train_model* forward, const onnx_train_option* options,
                                         size_t count, onnx_train_model** training);
/* The inference model alone: no training entry points, no state but the weights. */
onnx_train_status onnx_train_model_export(const onnx_train_model* training, onnx_train_model** inference);
/* One entry point as a plain ONNX model: each state is an input, its next value an output. */
onnx_train_status onnx_train_model_flatten(const onnx_train_model* training, const char* entry,
                                           onnx_train_model** flat);

/* ---- Sessions: a training model's state on a device, and the plans that run it */

typedef struct onnx_train_session onnx_train_session;

/* Options: "device" ["cpu"; others are modules libonnx_train_NAME.so beside the library], "threads" [all cores],
 * "memory" (bytes that gradients and activations may take) [what the machine has]. The session copies the model; it may
 * be freed. */
onnx_train_status onnx_train_session_create(const onnx_train_model* training, const onnx_train_option* options,
                                            size_t count, onnx_train_session** session);
void onnx_train_session_free(onnx_train_session* session);

/* Runs an entry point ("step", "evaluate", "predict", "accumulate", "apply") and then commits its updates of the state:
 * a run that fails leaves the state as it was. Inputs are read in place; those with a default, such as learning_rate,
 * may be left out. `outputs` (may be null) receives the session's outputs, valid until the next call with this session.
 * The first run for each set of input shapes makes a plan; after that a run allocates nothing. */
onnx_train_status onnx_train_session_run(onnx_train_session* session, const char* entry,
                                         const onnx_train_tensor* inputs, size_t num_inputs,
                                         const onnx_train_tensor** outputs, size_t* num_outputs);

/* The names of the state: weights, optimizer slots, statistics, keys. Valid as long as the session. */
onnx_train_status onnx_train_session_states(onnx_train_session* session, const char* const** names, size_t* count);
/* Type and shape of a state; `data` is null. Valid until the next call with this session. */
onnx_train_status onnx_train_session_state(onnx_train_session* session, const char* name, onnx_train_tensor* state);
/* Copies a state to, and from, the caller's memory of `bytes` bytes: exactly the state's. */
onnx_train_status onnx_train_session_get(onnx_train_session* session, const char* name, void* data, size_t bytes);
onnx_train_status onnx_train_session_set(onnx_train_session* session, const char* name, const void* data, size_t bytes);
/* Exchanges the values of a state with those of a state of the same name, type, shape and device in another session; on
 * the CPU nothing is copied. Both must be idle. */
onnx_train_status onnx_train_session_swap(onnx_train_session* session, onnx_train_session* other, const char* name);
/* Draws the whole state anew, if the model was built to. */
onnx_train_status onnx_train_session_initialize(onnx_train_session* session, uint64_t seed);

/* The training model with the present state: save it for a checkpoint, export it for inference. */
onnx_train_status onnx_train_session_model(onnx_train_session* session, onnx_train_model** training);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* ONNX_TRAIN_H */
