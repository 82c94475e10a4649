/* The C interface of onnx-train: models in, training models out, sessions that run them.
 *
 * Handles are opaque; the caller owns each that a function gives and frees it with the function of its type, which
 * takes null, too. A function that can fail returns a status; the text of the last failure of the calling thread is
 * onnx_train_last_error(). What a function gives is written only when it returns ONNX_TRAIN_OK. No function throws.
 *
 * Threads: a model, a dataset and a report may be read by any number of threads at once. A session belongs to one
 * thread at a time, and to no particular one; a call from another one while it works returns ONNX_TRAIN_USAGE. Sessions
 * share nothing that changes. The text of a failure belongs to the thread of the call: a language whose tasks move
 * between threads of the system holds the thread until it has read the text.
 *
 * Memory: the caller's arrays, strings and structs are read until the call returns, and inputs are never written to; a
 * batch of a program's own data, until the next one is asked for. A pointer to an array may be null where its count is
 * 0. Data of inputs are at multiples of their elements' size. Apart from handles, what a function gives is the
 * library's, and the function says how long it lives; "until the next call with the session" means any call that takes
 * the session.
 *
 * Callbacks run on the thread of the call. They return: an exception or a jump out of them leaves the library in the
 * middle of its work. They free nothing that the call uses, which are the session and the data.
 *
 * Strings are UTF-8 and end with a zero byte. Names of a model's file in another encoding are given and taken as they
 * are, and so are paths.
 *
 * The numbers below and the layout of the structs never change within one major version of the library, but for structs
 * that begin with `size`, at whose end a version may add fields: set `size` to that of the struct that the program was
 * compiled with, and the new fields are zero. An enum is an int of four bytes. A later version may give numbers that
 * are not here. */
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
 * calling thread; "" before the first. A call that succeeds leaves it as it is. */
const char* onnx_train_last_error(void);
/* Its code, "OT1001", which stays the same from version to version; "" for a failure that has none. `onnx-train explain
 * OT1001` and docs/errors/OT1001.md say what it means and what to do. The text is constant, and never freed. */
const char* onnx_train_last_error_code(void);

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

/* Where a tensor's elements are. */
typedef enum onnx_train_memory {
  ONNX_TRAIN_HOST_MEMORY = 0,
  ONNX_TRAIN_DEVICE_MEMORY = 1 /* of the session's device (onnx_train_session_device) */
} onnx_train_memory;

/* A dense tensor in row-major order that somebody else owns. `shape` has `rank` sizes and may be null for a scalar.
 * Elements of bool are bytes, 0 or 1; those of float16 and bfloat16 are their 16 bits. Only inputs of runs may be in
 * device memory. */
typedef struct onnx_train_tensor {
  const char* name;
  onnx_train_type type;
  int32_t rank;
  const int64_t* shape;
  void* data;
  onnx_train_memory memory;
} onnx_train_tensor;

/* ---- Models: forward models, training models, checkpoints; each is one ONNX model */

typedef struct onnx_train_model onnx_train_model;

/* Reads an .onnx file; its large tensors are mapped, so the file must not be changed in place while the model lives. Of
 * the folder of a run of ONNX Runtime's training, or a checkpoint in it, makes a training model, as the command
 * import-ort does. */
onnx_train_status onnx_train_model_load(const char* path, onnx_train_model** model);
/* The same from `bytes` bytes in memory, which are copied. The model must hold all its data. */
onnx_train_status onnx_train_model_from_bytes(const void* data, size_t bytes, onnx_train_model** model);
void onnx_train_model_free(onnx_train_model* model);

/* Writes the model atomically: an existing file is complete and old, or complete and new. */
onnx_train_status onnx_train_model_save(const onnx_train_model* model, const char* path);
/* The serialized model, at most 2 GiB; free `data` with onnx_train_free. */
onnx_train_status onnx_train_model_to_bytes(const onnx_train_model* model, void** data, size_t* bytes);
void onnx_train_free(void* data);

/* Metadata i of the model, counted from 0: its value, and its key in `key`; null behind the last. The strings live as
 * long as the model. A training model has its loss as "onnx_train.loss", its optimizer as "onnx_train.optimizer", and
 * for each initializer that is taken for a constant, such as a buffer or a mask, "onnx_train.constant.<name>": why. */
const char* onnx_train_model_metadata(const onnx_train_model* model, size_t i, const char** key);

/* An option by the name and in the form that the command `onnx-train build` takes: {"loss", "cross_entropy"},
 * {"optimizer", "adamw(weight_decay=0.01)"}, {"freeze", "embeddings.*,encoder.layer.0.*"}, {"accumulate", "true"}. A
 * list is given by commas or by several options of one name. */
typedef struct onnx_train_option {
  const char* name;
  const char* value;
} onnx_train_option;

/* The options of "build" (onnx_train_model_build), "forward" (those of "build" that a training takes with a forward
 * model), "session" (onnx_train_session_create), "fit" (onnx_train_fit), "samples" (those of "fit" that say which
 * samples of arrays and files it takes), "data" (onnx_train_dataset_open_with), "check" (onnx_train_model_check),
 * "export" (onnx_train_model_export_with) or "generate" (onnx_train_generate), a line each: its name, its type, what
 * its value is, and what it does, with tabs between them. Types are bool, integer, number, text and list; "|auto" where
 * the word auto is a value, too. What it does is said as the command says it:
 * --seed is the option "seed". Null for another word. The text is constant, and never freed. */
const char* onnx_train_options(const char* of);

/* A training model from a forward model: loss, gradients, optimizer and their state. `options` may be null when `count`
 * is 0. With {"evaluation", "true"} the model has the entry point "evaluate" alone, and needs no weights. */
onnx_train_status onnx_train_model_build(const onnx_train_model* forward, const onnx_train_option* options,
                                         size_t count, onnx_train_model** training);
/* The same with a loss that is a model. An input of it whose name is that of a value of the forward model, mostly of an
 * output, reads that value; the others become inputs of the training model, such as targets. Its one output is the
 * loss, a float scalar. (A loss in a file needs no such call: {"loss", "loss.onnx"}.) Options: all but "loss". */
onnx_train_status onnx_train_model_build_with_loss(const onnx_train_model* forward, const onnx_train_model* loss,
                                                   const onnx_train_option* options, size_t count,
                                                   onnx_train_model** training);
/* The same for given data, which choose the loss where "loss" is not among the options: the model's first float output
 * is compared with what the data hold beside the model's inputs, `labels` or the only other array. Integers without the
 * output's axis of classes: cross_entropy; zeros and ones of the output's shape: bce_with_logits; numbers of its shape:
 * mse. The data are files (`path`, as onnx_train_dataset_open takes it) or, where `path` is null, arrays. Options:
 * those of onnx_train_model_build and of onnx_train_dataset_open_with. `note`, which may be null, receives what has
 * been chosen and why, in one line; valid until the thread's next call. Fails with ONNX_TRAIN_DATA where no loss fits.
 */
onnx_train_status onnx_train_model_build_for_data(const onnx_train_model* forward, const char* path,
                                                  const onnx_train_tensor* arrays, size_t num_arrays,
                                                  const onnx_train_option* options, size_t count,
                                                  onnx_train_model** training, const char** note);
/* The sizes that a forward model leaves open and the arrays have, as the option "dim" takes them:
 * "SAMPLES=512,width=64";
 * "" where there are none. The number of samples is not among them. For models of which a rule needs such a size: a
 * call that fails with ONNX_TRAIN_UNSUPPORTED may succeed with it. The arrays are those of all inputs of the model,
 * others are ignored. `sizes` is valid until the thread's next call. Fails with ONNX_TRAIN_DATA where the arrays do not
 * fit. */
onnx_train_status onnx_train_model_sizes(const onnx_train_model* forward, const onnx_train_tensor* arrays,
                                         size_t num_arrays, const char** sizes);
/* The inference model alone: no training entry points, no state but the weights. */
onnx_train_status onnx_train_model_export(const onnx_train_model* training, onnx_train_model** inference);
/* The same with options of the command `onnx-train export`: "merge", "cache", "dtype", "tta", "original-types",
 * "adapter-inputs", "into", "base". Fails with ONNX_TRAIN_DATA for weights that the model of "into" does not hold, and
 * with ONNX_TRAIN_UNSUPPORTED where an option has nothing to do, as "merge" without adapters. */
onnx_train_status onnx_train_model_export_with(const onnx_train_model* training, const onnx_train_option* options,
                                               size_t count, onnx_train_model** inference);
/* Writes what the option "into" names with trained weights to `path`: a model to a .onnx file, a folder of Optimum or
 * GenAI's model builder to a folder with all its files (onnx_train_model_export_with gives the model alone). Options:
 * "into", "base", "merge", "adapter-inputs". `note`, which may be null, receives what was written, guessed or left out,
 * a line each; valid until the thread's next call. Fails with ONNX_TRAIN_DATA, before anything is written, for weights
 * that are not there, and with ONNX_TRAIN_FILE for what cannot be read or written. */
onnx_train_status onnx_train_model_export_into(const onnx_train_model* training, const onnx_train_option* options,
                                               size_t count, const char* path, const char** note);
/* Writes the adapters of a training model, and the other weights that it trains, into `folder` as PEFT has them:
 * adapter_config.json and adapter_model.safetensors. The folder is made if it is not there. A name that ends in
 * .onnx_adapter is a file of ONNX Runtime's, for the model that the option "adapter-inputs" gives. */
onnx_train_status onnx_train_model_save_adapter(const onnx_train_model* training, const char* folder);
/* One entry point as a plain ONNX model: each state is an input, its next value an output. */
onnx_train_status onnx_train_model_flatten(const onnx_train_model* training, const char* entry,
                                           onnx_train_model** flat);
/* The forward and the backward pass of a forward model as two models, for programs with a loss and an optimizer of
 * their own: the model is one layer in a larger one. Each has the one entry point "predict". The roles of its inputs
 * and outputs (onnx_train_session_inputs) say what they are:
 *
 * - Inputs of the forward pass: the model's (""), "weight", and "state" (statistics and random keys); the last two have
 *   defaults. Its outputs: "output", "next" (of a state), "saved" (for the backward pass).
 * - Inputs of the backward pass: "dy" (of a float output), and by their names those of the forward pass's inputs and
 *   outputs that it reads. Its outputs: "gradient" (of a weight or a float input).
 *
 * Options: those of onnx_train_model_build but "loss", "optimizer" and what belongs to them. */
onnx_train_status onnx_train_model_differentiate(const onnx_train_model* forward, const onnx_train_option* options,
                                                 size_t count, onnx_train_model** forward_pass,
                                                 onnx_train_model** backward_pass);

/* A derivative of a forward model as a model with the one entry point "predict". y: the float outputs, w: the weights
 * and float inputs, J: dy/dw. `kind`:
 *
 * - "outputs": none, the outputs alone.
 * - "gradient": of the loss, by each w.
 * - "vjp": u^T J by each w. Inputs of the role "dy" are u, one for each output.
 * - "jvp": J v for each y. Inputs of the role "direction" are v, one for each w.
 * - "hvp": the loss's Hessian times v, for each w, likewise.
 *
 * Results have the roles "gradient" (of a w) and "derivative" (of an output, or of a w for "hvp"). Weights and states
 * are inputs with defaults, outputs have the role "output", as those of a forward pass have. `loss` may be null, or a
 * model in the place of the option "loss". Options: those of onnx_train_model_differentiate, and "loss". Fails with
 * ONNX_TRAIN_UNSUPPORTED where a node cannot be differentiated, for "jvp" and "hvp" twice. */
onnx_train_status onnx_train_model_derivative(const onnx_train_model* forward, const char* kind,
                                              const onnx_train_model* loss, const onnx_train_option* options,
                                              size_t count, onnx_train_model** derivative);

/* A copy of a model with other weights: `tensors` by the names of initializers, in the shapes of the model's. Floats
 * are converted to the float type of the weight, integers to its integer type; all else is ONNX_TRAIN_DATA. So is
 * a name that the model does not have, unless `strict` is 0, which leaves such tensors out. */
onnx_train_status onnx_train_model_with_weights(const onnx_train_model* model, const onnx_train_tensor* tensors,
                                                size_t count, int32_t strict, onnx_train_model** changed);

/* ---- Reports: whether a forward model can be trained, and everything that is in the way */

typedef struct onnx_train_report onnx_train_report;

/* What was found in a model: an obstacle to its training, or something worth knowing. */
typedef struct onnx_train_finding {
  const char* subject; /* a node, a weight, a part of the work */
  const char* what;
  const char* advice; /* what to do; may be "" */
} onnx_train_finding;

/* What was guessed, left out or changed when a training model was built: what a check of the forward model finds, with
 * the same options. Of a derivative, what it lacks. Empty for other models. The strings live as long as the model.
 * Returns the number of notes. */
size_t onnx_train_model_notes(const onnx_train_model* model, const onnx_train_finding** notes);

/* Options: those of the command `onnx-train check`. Succeeds for a model that cannot be trained, too. */
onnx_train_status onnx_train_model_check(const onnx_train_model* forward, const onnx_train_option* options,
                                         size_t count, onnx_train_report** report);
void onnx_train_report_free(onnx_train_report* report);
/* What the command prints. The strings and findings of a report live as long as the report; of a null report they are
 * empty. */
const char* onnx_train_report_text(const onnx_train_report* report);
/* The expression of the loss that the model was tried with. */
const char* onnx_train_report_loss(const onnx_train_report* report);
/* Why the model cannot be trained, in one line; "" when it can. */
const char* onnx_train_report_failure(const onnx_train_report* report);
/* What is in the way of training. Returns their number. */
size_t onnx_train_report_obstacles(const onnx_train_report* report, const onnx_train_finding** obstacles);
/* What is worth knowing besides. Returns their number. */
size_t onnx_train_report_findings(const onnx_train_report* report, const onnx_train_finding** findings);

/* ---- Schedules */

/* The learning rate of a step, counted from 0. Options, as of the command `onnx-train fit`: "lr", "schedule", "warmup",
 * "final-lr", "step-every", "step-factor", and "steps", those of the whole training. A schedule may have options of its
 * own: "one_cycle(pct_start=0.3)" (docs/training.md). */
onnx_train_status onnx_train_learning_rate(const onnx_train_option* options, size_t count, int64_t step, double* rate);

/* ---- Sessions: a training model's state on a device, and the plans that run it */

typedef struct onnx_train_session onnx_train_session;

/* Options: "device" ["cpu"; others are NAME or NAME:N, number N of the devices of the module libonnx_train_NAME.so
 * beside the library: "cuda", "cuda:1"], "threads" [all cores that the process may use], "memory" (bytes that
 * gradients and activations may take) [what the machine has], "max-plans" (plans that are kept, one for each entry
 * point and set of sizes of its inputs) ["16"], "tf32" ("true": products and convolutions of float32 may round their
 * operands to 10 bits after the point, which NVIDIA's tensor cores multiply many times as fast; no other device does)
 * ["false"], "deterministic" ("false": a GPU's library may add in the order in which its threads arrive, where that is
 * faster; two runs differ in their last bits then) ["true"], "offload" ("optimizer": what the optimizer keeps for each
 * weight is stored in the host's memory, where a GPU reads and writes it in each step; the same bits; refused on the
 * CPU) ["none"], "tta" ("flip, shift(1)": the views of pictures over which "evaluate" and "predict" average, see
 * docs/data.md), "seed" (of what random operators of the model draw in "evaluate" and "predict") ["0"],
 * "detect-anomaly"
 * ("true": a run whose loss or gradients are not finite fails with ONNX_TRAIN_DATA, which names the first node that
 * this comes from; slow, on the CPU) ["false"], "allow-non-finite"
 * ("true": a step whose loss is NaN or infinite updates the state with it; otherwise the run fails with
 * ONNX_TRAIN_DATA, on the CPU before any update; models with loss scaling skip such updates) ["false"], "ranks"
 * ("environment": this process is one of several that train together, as a launcher's variables say, see
 * docs/distributed.md; the first such session of a process waits up to five minutes for the others) [this process
 * alone], "zero" ("1", "2", "3": ranks share out the optimizer's states, the sums of gradients, the weights; with "3"
 * all of them run "predict" together) ["0"], "reduction" ("fast": gradients travel once a step) ["auto": "exact" on the
 * CPU], "reduction-type" ("bf16", with "fast": in bfloat16) ["float32"], "pipeline" ("2": so many consecutive ranks
 * have a stage of the model each, through which the batches of a step go) ["1"], "tensor-parallel" ("2": so many
 * consecutive ranks compute products together, each with its part of the weights; all of them are given the same
 * inputs, run all entry points together, and have the same outputs; a state of which ranks have parts can be set and
 * not read) ["1"], "sync-batch-norm" ("true") ["false"]. With ranks, "accumulate" and "evaluate" are run by all of them
 * together, their outputs have a first axis of ranks, and "threads" is by default this process's share of the machine.
 * onnx_train_fit does all this: each process gives the same model, data and options, and rank 0 writes. The session
 * copies the model; it may be freed. A model without training entry points has the entry point "predict" and no state.
 */
onnx_train_status onnx_train_session_create(const onnx_train_model* training, const onnx_train_option* options,
                                            size_t count, onnx_train_session** session);
void onnx_train_session_free(onnx_train_session* session);

/* Runs an entry point ("step", "evaluate", "predict", "accumulate", "apply") and then commits its updates of the state:
 * a run that fails leaves the state as it was. Inputs are read in place; those with a default, such as learning_rate,
 * may be left out. Inputs in device memory are copied within the device by the session's stream
 * (onnx_train_session_device): before the call, what writes them is complete, or the stream waits for it. An input may
 * be a state of the session (onnx_train_session_address): the run reads its value from before the run. `outputs` (may
 * be null) receives the session's outputs, valid until the next call with this session; they are in the host's memory.
 * The first run for each set of input shapes makes a plan; after that a run allocates no tensor: only oneDNN takes and
 * returns buffers of about 1 MB for its products. */
onnx_train_status onnx_train_session_run(onnx_train_session* session, const char* entry,
                                         const onnx_train_tensor* inputs, size_t num_inputs,
                                         const onnx_train_tensor** outputs, size_t* num_outputs);

/* An input or output of an entry point, or a state. The role says what it is, whatever its name is. */
typedef struct onnx_train_port {
  const char* name;
  const char*
      role;       /* "learning_rate", "clip_norm", "loss", "accuracy", "grad_norm", ...; "" for the model's own data */
  const char* of; /* the value that it belongs to; mostly "" */
  onnx_train_type type;
  int32_t rank;         /* -1: not known */
  const int64_t* shape; /* -1: a size that the model leaves open */
  const void* data;     /* the default of an input that may be left out; else null */
} onnx_train_port;

/* What the model's preprocessing (onnx_train_fit's "scale") multiplies the data of an input by; 1: it does nothing.
 * onnx_train_session_run takes inputs as the network reads them, which means multiplied. ONNX_TRAIN_USAGE where other
 * steps are done to them, such as "normalize(imagenet)". */
onnx_train_status onnx_train_session_scale(onnx_train_session* session, const char* input, double* scale);

/* Along which axis an input of an entry point holds its samples: 0, or the one to which the model gives the size of the
 * batch, as 1 of [steps, batch, features]. Arrays and files of onnx_train_fit, onnx_train_evaluate and
 * onnx_train_predict are cut into batches along it. ONNX_TRAIN_DATA where there is no such input. */
onnx_train_status onnx_train_session_sample_axis(onnx_train_session* session, const char* entry, const char* input,
                                                 int32_t* axis);

/* The names of the entry points with outputs, "predict" first. "initialize", which draws the state and gives nothing,
 * is not among them: onnx_train_session_initialize. Valid as long as the session. */
onnx_train_status onnx_train_session_entries(onnx_train_session* session, const char* const** names, size_t* count);
/* The inputs of an entry point, those of the forward model first, and its outputs. Valid as long as the session. */
onnx_train_status onnx_train_session_inputs(onnx_train_session* session, const char* entry,
                                            const onnx_train_port** inputs, size_t* count);
onnx_train_status onnx_train_session_outputs(onnx_train_session* session, const char* entry,
                                             const onnx_train_port** outputs, size_t* count);

/* What a run of an entry point executes. The strings are valid until the next call with the session. */
typedef struct onnx_train_plan {
  const char* text; /* what the command `onnx-train show --plan` prints: a line a node */
  const char* json; /* what it prints with --json: an array with an object a node, with kernel, FLOP and bytes */
  /* Bytes of memory while it runs: of gradients and activations at their peak, workspace included; of that, workspace;
   * and of constants. The state comes on top. */
  size_t arena_bytes, workspace_bytes, constant_bytes;
} onnx_train_plan;

/* The plan of an entry point. Options: "batch" [1], the first size of the inputs where the model leaves it open, and
 * "dim", "NAME=N", other sizes that it leaves open [8]. Makes the plan if there is none for these sizes; runs nothing.
 */
onnx_train_status onnx_train_session_plan(onnx_train_session* session, const char* entry,
                                          const onnx_train_option* options, size_t count, onnx_train_plan* plan);

/* The names of the state: weights, optimizer slots, statistics, keys. Valid as long as the session. */
onnx_train_status onnx_train_session_states(onnx_train_session* session, const char* const** names, size_t* count);
/* The same with role, type and shape: "exp_avg", "momentum_buffer" and the like, `of` their weight, "step",
 * "random_key", "loss_scale"; "" for weights and statistics. Valid as long as the session. */
onnx_train_status onnx_train_session_state_ports(onnx_train_session* session, const onnx_train_port** states,
                                                 size_t* count);
/* Type and shape of a state; `data` is null. Valid until the next call with this session. */
onnx_train_status onnx_train_session_state(onnx_train_session* session, const char* name, onnx_train_tensor* state);
/* Copies a state to, and from, the caller's memory of `bytes` bytes: exactly the state's. */
onnx_train_status onnx_train_session_get(onnx_train_session* session, const char* name, void* data, size_t bytes);
onnx_train_status onnx_train_session_set(onnx_train_session* session, const char* name, const void* data, size_t bytes);
/* The same as onnx_train_session_set from memory of the session's device, without a copy on the host. Before the
 * call, what writes `data` is complete, or the session's stream waits for it. */
onnx_train_status onnx_train_session_set_from_device(onnx_train_session* session, const char* name, const void* data,
                                                     size_t bytes);
/* The address of a state in the memory of the session's device: fixed as long as the session lives. The program may
 * read and write it while the session is idle: it always holds the present value. `on_host` is 1 where it is memory of
 * the host. Elsewhere it is 0; before the next call with the session, work of the program on the state is complete, or
 * the session's stream waits for it. The address is null where another rank keeps the state, or each a part of it. */
onnx_train_status onnx_train_session_address(onnx_train_session* session, const char* name, void** address,
                                             int32_t* on_host);

/* Where the tensors of a session are, in the numbers of DLPack, by which libraries exchange tensors. */
typedef struct onnx_train_device {
  int32_t type; /* DLDeviceType: 1 is the host, 2 is CUDA */
  int32_t id;   /* number among the devices of its type */
  /* On which the session's work runs: a cudaStream_t on CUDA, null where the device has none. All work of a call is
   * complete when it returns; onnx_train_fit runs callbacks while there is more. */
  void* stream;
} onnx_train_device;
/* This process's number among those that train together, from 0 on, and how many they are: 0 and 1 where the session
 * has no ranks. Either may be null. */
onnx_train_status onnx_train_session_ranks(onnx_train_session* session, int32_t* rank, int32_t* ranks);
/* Valid as long as the session. */
onnx_train_status onnx_train_session_device(onnx_train_session* session, onnx_train_device* device);

/* Exchanges the values of a state with those of a state of the same name, type, shape and device in another session, by
 * three copies through memory of its size on that device. Both must be idle. */
onnx_train_status onnx_train_session_swap(onnx_train_session* session, onnx_train_session* other, const char* name);
/* Reads an adapter in PEFT's format, for a model with adapters of the same kind ("lora", "ia3" or "adapter" of
 * onnx_train_model_build), and keeps it in the session as `name`; one of this name is replaced. Weights that were
 * trained besides the adapter are part of it. */
onnx_train_status onnx_train_session_load_adapter(onnx_train_session* session, const char* name, const char* folder);
/* Gives the states the values of the adapter of this name: the next run has them. Nothing is planned or built anew.
 * What the states held is gone, unless it was saved. */
onnx_train_status onnx_train_session_set_adapter(onnx_train_session* session, const char* name);
/* Begins anew: the weights are drawn if the model was built with the option "init", else kept; the optimizer's state
 * and the number of steps are those of the start in both cases. */
onnx_train_status onnx_train_session_initialize(onnx_train_session* session, uint64_t seed);

/* The training model with the present state: save it for a checkpoint, export it for inference. */
onnx_train_status onnx_train_session_model(onnx_train_session* session, onnx_train_model** training);

/* ---- Data files: what the command's --data takes */

typedef struct onnx_train_dataset onnx_train_dataset;

/* The data at `path`: X.npz, X.csv, X.libsvm, a folder of .npy files, the files of MNIST or CIFAR-10, files of tokens,
 * as docs/training.md says. They have the arrays that an entry point of the session takes; null for `entry`: that which
 * trains, or "predict" where the model has none. Of a folder with files for both, "evaluate" and "predict" read those
 * for tests, the others those for training. Names, types and shapes are checked. Without a session (null, and null for
 * `entry`) it has all arrays of a file that names them: .npz and .npy. Files are mapped: do not change them in place
 * while the dataset lives. It does not change; any number of threads may read it, and it may outlive the session. */
onnx_train_status onnx_train_dataset_open(const char* path, onnx_train_session* session, const char* entry,
                                          onnx_train_dataset** dataset);
/* The same with the options of data, as of the command: "block-size", "document-end", "tokenizer" (a file or folder),
 * "packing" (none, bfd, bfd_split or wrapped), "no-token-cache", "token-type", "missing" (mean, zero or drop),
 * "columns" ("x=a,b"), "map" ("column=input"), "on-bad-picture" (stop or skip) and "label-separator". Where the entry
 * point trains, the session's model keeps the names of classes and categories that a table has, so that later tables
 * are read alike. */
onnx_train_status onnx_train_dataset_open_with(const char* path, onnx_train_session* session, const char* entry,
                                               const onnx_train_option* options, size_t count,
                                               onnx_train_dataset** dataset);
void onnx_train_dataset_free(onnx_train_dataset* dataset);
/* The arrays in the element types of the file. They are views of mapped files where that is possible (blocks of tokens
 * are copied, pictures decoded and preprocessed as the session's model says, at the first call): not to be written to,
 * and at addresses that need not be multiples of the elements' size: copy those that are not before a run reads them.
 * Valid as long as the dataset. */
onnx_train_status onnx_train_dataset_arrays(const onnx_train_dataset* dataset, const onnx_train_tensor** arrays,
                                            size_t* count);
/* The number of samples, and that of an epoch's batches of `batch_size` samples; 0: the size that onnx_train_fit takes
 * without the option "batch-size". Needs a dataset that was opened for a session. */
onnx_train_status onnx_train_dataset_size(const onnx_train_dataset* dataset, int64_t batch_size, int64_t* samples,
                                          int64_t* batches);
/* An entry of what the file says of its arrays: `key` receives its key, null stands for the end. A safetensors file has
 * such texts; tables have the names of classes and categories. Both belong to the dataset. */
const char* onnx_train_dataset_metadata(const onnx_train_dataset* dataset, size_t i, const char** key);

/* Files of tensors by name, whatever their suffix: https://github.com/huggingface/safetensors. The tensors of a file
 * are those of a dataset without samples. Fails with ONNX_TRAIN_FILE for a file that is damaged, and names the tensor.
 */
onnx_train_status onnx_train_safetensors_open(const char* path, onnx_train_dataset** dataset);
/* Writes the tensors, and texts by name, which may be null, atomically. */
onnx_train_status onnx_train_safetensors_save(const char* path, const onnx_train_tensor* tensors, size_t count,
                                              const onnx_train_option* metadata, size_t num_metadata);

/* The rows of `samples` samples on which onnx_train_fit trains and evaluates with the same options: "skip", "limit",
 * "val-split", "folds", "fold" and "seed". Both in ascending order; each place has room for `samples` numbers. For
 * metrics of the program's own on what was held out. */
onnx_train_status onnx_train_split(int64_t samples, const onnx_train_option* options, size_t count, int64_t* training,
                                   size_t* num_training, int64_t* evaluation, size_t* num_evaluation);

/* ---- Training: the loop of the command `onnx-train fit` over data of the program */

/* What a callback returns. */
typedef enum onnx_train_next {
  ONNX_TRAIN_CONTINUE = 0,
  ONNX_TRAIN_STOP = 1,      /* end the training after this step, with a last evaluation */
  ONNX_TRAIN_INTERRUPT = 2, /* end it after this step, without one: a resumed training goes on as if never stopped */
  ONNX_TRAIN_FAIL = 3,      /* give up at once: onnx_train_fit returns ONNX_TRAIN_USAGE */
  ONNX_TRAIN_END_TEXT = 4   /* of onnx_train_on_token: this text is complete, and the others go on */
} onnx_train_next;

/* Data: arrays, batches or files. Set all that is not used to zero, and `size` to sizeof(onnx_train_data). */
typedef struct onnx_train_data {
  size_t size;
  /* Arrays with one sample per row in the host's memory, which the library cuts into batches ("batch-size", "seed",
   * "no-shuffle"). */
  const onnx_train_tensor* arrays;
  size_t num_arrays;
  /* Or the program's own batches, passed `user`. `begin` (may be null) starts epoch `epoch`, counted from 0. `next`
   * sets the inputs of the next batch, on the host or the device, which stay valid until it is called again; their
   * first dimension is the number of samples, which may change. No inputs: the epoch is over. Only CONTINUE and FAIL
   * are of use here. */
  void* user;
  onnx_train_next (*begin)(void* user, int64_t epoch);
  onnx_train_next (*next)(void* user, const onnx_train_tensor** inputs, size_t* count);
  int64_t batches; /* of an epoch, for schedules that need an end; 0: not known */
  /* Or files, opened for the session; they are cut into batches as arrays are. */
  const onnx_train_dataset* dataset;
} onnx_train_data;

typedef struct onnx_train_step {
  int64_t step, epoch, samples;   /* step and epoch counted from 1 */
  double loss;                    /* of the step's samples, before the update */
  double learning_rate, accuracy; /* accuracy: NaN where the model has none */
  double grad_norm, seconds;
  double loss_scale; /* of a model with loss scaling; else 0 */
  int32_t skipped;   /* 1: with loss scaling, the gradients overflow, and the weights stay as they are */
  int64_t tokens;    /* of the samples, by `seconds` the tokens a second; 0 of a model that reads no texts */
  /* What products and convolutions of the step compute, against the rate of one large product on the machine: about 0
   * to 1. NaN in the first ten seconds, of a model without them, and of several ranks on CPUs. */
  double utilization;
} onnx_train_step;

typedef struct onnx_train_metric {
  const char* name;
  double value;
} onnx_train_metric;

typedef struct onnx_train_evaluation {
  int64_t step, epoch;
  double train_loss; /* over all that counts since the previous evaluation; NaN where nothing does */
  const onnx_train_metric* metrics;
  size_t num_metrics; /* 0 without evaluation data */
  int32_t best;       /* 1: the best so far, in the metric of the option "best" [loss] */
  /* What metrics say by class, as of onnx_train_session_metric_tables. */
  const onnx_train_tensor* tables;
  size_t num_tables;
} onnx_train_evaluation;

/* Callbacks, each of which may be null. They run on the thread that called onnx_train_fit. Set `size` to
 * sizeof(onnx_train_observer). */
typedef struct onnx_train_observer {
  size_t size;
  void* user;
  onnx_train_next (*on_step)(void* user, const onnx_train_step* step);
  onnx_train_next (*on_evaluation)(void* user, const onnx_train_evaluation* evaluation);
  onnx_train_next (*on_checkpoint)(void* user, const char* path); /* when its writing starts */
  onnx_train_next (*on_note)(void* user, const char* text);       /* something unusual that the training goes on from */
} onnx_train_observer;

typedef enum onnx_train_stop_reason {
  ONNX_TRAIN_FINISHED = 0,
  ONNX_TRAIN_INTERRUPTED = 1,
  ONNX_TRAIN_EARLY_STOP = 2,
  ONNX_TRAIN_TIME_LIMIT = 3,
  ONNX_TRAIN_STOPPED = 4,
  ONNX_TRAIN_TARGET = 5 /* "stop-at" */
} onnx_train_stop_reason;

/* Trains the session from its present state until a limit is reached or a callback ends it. `evaluation`, `observer`
 * and `reason` may be null. Options, as of the command: "epochs", "steps", "time-limit" ("90", "15m") (at least one of
 * them), "batch-size" ("auto": the largest that fits in memory, found from plans, of arrays and files), "memory-limit"
 * (bytes of the process, or of the session on a device with its own memory, "2GiB": what "batch-size" of "auto" may
 * plan with), "accumulate" [1, or the number of ranks], "lr" ("auto": from a range test of at most 100 steps on arrays
 * or files, which leaves the state as it was; on_note says what both have found), "schedule", "warmup", "final-lr",
 * "step-every", "step-factor", "clip", "seed" (of the order, and of what is drawn), "no-shuffle", "skip", "limit",
 * "val-split", "folds", "fold", "overfit-batches", "class-balance", "drop-last", "group-by-length" (of arrays and
 * files: which samples, see docs/training.md), "best" (the metric of best.onnx and "early-stop"), "preprocess" and
 * "augment" (docs/data.md), "scale" ("INPUT=1/255"; data and batches are multiplied by it, and the session's model
 * keeps it: see docs/training.md), "no-data-check" (arrays and files are read once before the first step, and refused
 * if they hold what the model cannot use: labels out of range, numbers that are not finite), "eval-every",
 * "early-stop", "min-delta", "stop-at"
 * ("accuracy>=0.94": the evaluation after which the training ends), "checkpoint-every", "checkpoint-shards" ("on": each
 * rank writes its part of a checkpoint into "out"; all ranks then give it), "checkpoint-base" ("refer": checkpoints
 * refer to the frozen weights in the files that the model was loaded from; "whole": they hold them; [where that is most
 * of a large one]), "out" (the folder of last.onnx,
 * best.onnx, options.json, which has every option in use, and the numbers of steps and evaluations as the command
 * writes them, metrics.jsonl, metrics.csv and epochs.jsonl; none is written without it), "resume" (go on from
 * last.onnx of that folder, if there is one) and "overwrite". Where a run goes on, options that are not given stay as
 * it has them, the end included; on_note says what is given and differs, such as another "lr"; another "seed",
 * "batch-size" or model, other data, and all else that decides what is trained, is ONNX_TRAIN_UNSUPPORTED, and the
 * state stays as it was. "wait-for-steps": on a device that works asynchronously, complete each step before the next
 * one starts. Callbacks may use the session on the CPU, in on_evaluation, and everywhere with "wait-for-steps". After a
 * failure the session has the state of its last successful step. */
onnx_train_status onnx_train_fit(onnx_train_session* session, const onnx_train_data* training,
                                 const onnx_train_data* evaluation, const onnx_train_option* options, size_t count,
                                 const onnx_train_observer* observer, onnx_train_stop_reason* reason);

/* Runs "evaluate" on all data, and gives loss and metrics over all that counts in them, whatever the batches: the
 * command `onnx-train eval`. Options: "batch-size", of arrays and files, where the model leaves it open [128], and
 * "scale" [the model's own]. Of the observer, which may be null, on_note is called. Metrics are valid until the next
 * call with the session. */
onnx_train_status onnx_train_evaluate(onnx_train_session* session, const onnx_train_data* data,
                                      const onnx_train_option* options, size_t count,
                                      const onnx_train_observer* observer, const onnx_train_metric** metrics,
                                      size_t* num_metrics);
/* The metrics that are made of statistics: the outputs of "evaluate" with the role "statistic", of one run or summed
 * over several, such as those of processes that share the data (docs/metrics.md). Other tensors may be among them. A
 * model without such metrics has none. Metrics are valid until the next call with the session. */
onnx_train_status onnx_train_session_metrics(onnx_train_session* session, const onnx_train_tensor* statistics,
                                             size_t count, const onnx_train_metric** metrics, size_t* num_metrics);
/* What the metrics of the last onnx_train_evaluate or onnx_train_session_metrics say by class: doubles [C], such as
 * "f1_per_class", and [C,C], "confusion_matrix", by label and prediction. NaN where a class has no value. Valid until
 * the next call with the session. */
onnx_train_status onnx_train_session_metric_tables(onnx_train_session* session, const onnx_train_tensor** tables,
                                                   size_t* count);
/* Runs "predict" on all samples of arrays or files, and gives the outputs of all samples in their order: the command
 * `onnx-train predict`. Options and observer as of onnx_train_evaluate. Outputs are valid until the next call with the
 * session. */
onnx_train_status onnx_train_predict(onnx_train_session* session, const onnx_train_data* data,
                                     const onnx_train_option* options, size_t count,
                                     const onnx_train_observer* observer, const onnx_train_tensor** outputs,
                                     size_t* num_outputs);

/* Called with each token that is drawn and the number of its text. ONNX_TRAIN_END_TEXT completes this text, such as
 * after a word that the program looks for; ONNX_TRAIN_STOP ends all. */
typedef onnx_train_next (*onnx_train_on_token)(void* user, size_t text, int64_t token);

/* Writes on texts with a causal language model, whose "predict" maps int[batch, tokens] to logits float[batch, tokens,
 * vocabulary]: the command `onnx-train sample`. Text i begins with the lengths[i] tokens prompts[i], at least one. A
 * prompt is read at once and then each token alone, with a cache of the keys and values of earlier ones, by a model
 * with a copy of the weights; where the graph mixes tokens in another way than by attention, all are read anew for each
 * one. `on_token` gets what is drawn; ONNX_TRAIN_STOP ends all. Options: "tokens" (at most, after each prompt) [100],
 * "temperature" [1; 0: always the most likely], "top-k", "top-p", "end" (the token that completes a text), "stop"
 * (tokens, "198,198", that complete it; once for each), "context" (tokens that are read), "seed", "no-cache". A model
 * whose logits depend on what comes after them is refused. */
onnx_train_status onnx_train_generate(onnx_train_session* session, const int64_t* const* prompts, const size_t* lengths,
                                      size_t num_texts, const onnx_train_option* options, size_t count,
                                      onnx_train_on_token on_token, void* user);
/* Why the last onnx_train_generate of the session was not as fast as it is with a cache, in a line: the node that mixes
 * tokens in another way than by attention, or a text that is longer than the context. "" if it was, and with
 * "no-cache". Valid until the next one. */
const char* onnx_train_generate_note(const onnx_train_session* session);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* ONNX_TRAIN_H */
