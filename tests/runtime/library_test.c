/* A C program with the installed library: every function once, and what it says of mistakes. */
#include <onnx_train/onnx_train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                  \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, onnx_train_last_error()); \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

/* Usage: c_test MODEL DEVICE */
static int says(const char* text) { return strstr(onnx_train_last_error(), text) != NULL; }

static void test_models(const char* path, onnx_train_model** training) {
  onnx_train_model *forward = NULL, *copy = NULL, *flat = NULL, *inference = NULL, *changed = NULL;
  static const double values[3] = {1, 1, 1};
  const int64_t shape[] = {3};
  const onnx_train_tensor ones = {"fc2.bias", ONNX_TRAIN_DOUBLE, 1, shape, (void*)values, ONNX_TRAIN_HOST_MEMORY};
  const onnx_train_tensor wrong_name = {"fc9", ONNX_TRAIN_DOUBLE, 1, shape, (void*)values, ONNX_TRAIN_HOST_MEMORY};
  static const float row[4] = {0};
  const int64_t rows[] = {1, 4};
  const onnx_train_tensor x = {"x", ONNX_TRAIN_FLOAT, 2, rows, (void*)row, ONNX_TRAIN_HOST_MEMORY};
  const onnx_train_option into[] = {{"into", path}, {"base", path}};
  const char *sizes = NULL, *note = NULL;
  void* bytes = NULL;
  size_t size = 0;
  const onnx_train_option options[] = {{"loss", "cross_entropy"}, {"optimizer", "sgd(momentum=0.9)"}};
  const onnx_train_option unknown[] = {{"los", "mse"}}, wrong[] = {{"clip", "-1"}}, bad[] = {{"loss", "mse("}};
  const onnx_train_option nameless[] = {{NULL, NULL}}, valueless[] = {{"loss", NULL}};

  EXPECT(strcmp(onnx_train_version(), ONNX_TRAIN_VERSION) == 0);
  EXPECT(strcmp(onnx_train_last_error(), "") == 0 && strcmp(onnx_train_last_error_code(), "") == 0);
  EXPECT(onnx_train_model_load("missing.onnx", &forward) == ONNX_TRAIN_FILE && says("missing.onnx"));
  EXPECT(forward == NULL);
  EXPECT(strcmp(onnx_train_last_error_code(), "OT1001") == 0);
  EXPECT(onnx_train_model_load(NULL, &forward) == ONNX_TRAIN_USAGE && strcmp(onnx_train_last_error_code(), "") == 0);
  EXPECT(onnx_train_model_from_bytes("no model", 8, &forward) == ONNX_TRAIN_FILE && says("not an ONNX model"));
  EXPECT(onnx_train_model_from_bytes("", 0, &forward) == ONNX_TRAIN_FILE);
  EXPECT(onnx_train_model_load(path, &forward) == ONNX_TRAIN_OK);

  EXPECT(onnx_train_model_to_bytes(forward, &bytes, &size) == ONNX_TRAIN_OK && size > 0);
  EXPECT(onnx_train_model_from_bytes(bytes, size, &copy) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_from_bytes(bytes, size / 2, &inference) == ONNX_TRAIN_FILE && says("truncated"));
  onnx_train_free(bytes);

  EXPECT(onnx_train_model_build(copy, unknown, 1, training) == ONNX_TRAIN_USAGE && says("did you mean 'loss'"));
  EXPECT(onnx_train_model_build(copy, wrong, 1, training) == ONNX_TRAIN_USAGE && says("out of range"));
  EXPECT(onnx_train_model_build(copy, bad, 1, training) == ONNX_TRAIN_USAGE && says("column"));
  EXPECT(onnx_train_model_build(copy, NULL, 1, training) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_build(copy, nameless, 1, training) == ONNX_TRAIN_USAGE &&
         says("the name of an option is null"));
  EXPECT(onnx_train_model_build(copy, valueless, 1, training) == ONNX_TRAIN_USAGE && says("loss is null"));
  EXPECT(onnx_train_model_build(copy, options, 2, training) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_notes(*training, NULL) == 0 && onnx_train_model_notes(NULL, NULL) == 0);
  EXPECT(onnx_train_model_sizes(copy, &x, 1, &sizes) == ONNX_TRAIN_OK && strcmp(sizes, "") == 0);
  EXPECT(onnx_train_model_sizes(copy, &ones, 1, &sizes) == ONNX_TRAIN_DATA && says("no 'x'"));
  EXPECT(onnx_train_model_sizes(copy, NULL, 1, &sizes) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_sizes(NULL, &x, 1, &sizes) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_sizes(copy, &x, 1, NULL) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_build_for_data(copy, NULL, &ones, 1, NULL, 0, &flat, NULL) == ONNX_TRAIN_DATA &&
         says("no loss is found"));
  EXPECT(onnx_train_model_build_for_data(copy, "no/data.npz", NULL, 0, NULL, 0, &flat, NULL) == ONNX_TRAIN_FILE);
  EXPECT(onnx_train_model_build_with_loss(copy, NULL, NULL, 0, &flat) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_build_with_loss(copy, copy, options, 2, &flat) == ONNX_TRAIN_USAGE && says("'loss'"));
  EXPECT(onnx_train_model_build_with_loss(copy, copy, NULL, 0, &flat) == ONNX_TRAIN_UNSUPPORTED && says("one float"));
  EXPECT(onnx_train_model_export(forward, &inference) == ONNX_TRAIN_FILE && says("no training model"));
  EXPECT(onnx_train_model_export(*training, &inference) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_with_weights(*training, &ones, 1, 1, &changed) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_export_into(changed, into, 2, "into.onnx", &note) == ONNX_TRAIN_OK);
  EXPECT(strcmp(note, "into.onnx: 1 trained weights in 1 tensors") == 0);
  EXPECT(onnx_train_model_export_into(changed, into, 2, "into.onnx", NULL) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_export_into(changed, into, 2, "no/such/into.onnx", NULL) == ONNX_TRAIN_FILE);
  EXPECT(onnx_train_model_export_into(changed, NULL, 0, "into.onnx", NULL) == ONNX_TRAIN_USAGE && says("\"into\""));
  EXPECT(onnx_train_model_export_into(changed, into, 2, NULL, NULL) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_export_into(*training, into, 2, "into.onnx", NULL) == ONNX_TRAIN_DATA && says("no weight"));
  onnx_train_model_free(changed);
  EXPECT(onnx_train_model_flatten(*training, "stp", &flat) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_flatten(*training, "step", &flat) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_save(flat, "no/such/folder/flat.onnx") == ONNX_TRAIN_FILE);
  EXPECT(onnx_train_model_save(flat, "flat.onnx") == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_with_weights(copy, &ones, 1, 1, &changed) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_with_weights(copy, &wrong_name, 1, 1, &flat) == ONNX_TRAIN_DATA && says("no weight 'fc9'"));
  onnx_train_model_free(changed);
  EXPECT(onnx_train_model_with_weights(copy, &wrong_name, 1, 0, &changed) == ONNX_TRAIN_OK);
  onnx_train_model_free(changed);
  onnx_train_model_free(forward);
  onnx_train_model_free(copy);
  onnx_train_model_free(flat);
  onnx_train_model_free(inference);
  onnx_train_model_free(NULL);
}

static void test_reports(const char* path) {
  onnx_train_model *model = NULL, *forward = NULL, *backward = NULL;
  onnx_train_report* report = NULL;
  const onnx_train_finding* found = NULL;
  const onnx_train_option frozen[] = {{"freeze", "fc*"}}, unknown[] = {{"clip", "1"}}, loss[] = {{"loss", "mse("}};
  const onnx_train_option schedule[] = {{"lr", "0.5"}, {"schedule", "linear"}, {"steps", "4"}, {"warmup", "2"}};
  const onnx_train_option step[] = {{"schedule", "step"}};
  double rate = 0;

  EXPECT(onnx_train_model_load(path, &model) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_check(model, NULL, 0, &report) == ONNX_TRAIN_OK);
  EXPECT(strstr(onnx_train_report_text(report), "It can be trained") != NULL);
  EXPECT(strcmp(onnx_train_report_loss(report), "cross_entropy") == 0);
  EXPECT(strcmp(onnx_train_report_failure(report), "") == 0);
  EXPECT(onnx_train_report_obstacles(report, &found) == 0);
  EXPECT(onnx_train_report_findings(report, NULL) == 0);
  onnx_train_report_free(report);
  EXPECT(onnx_train_model_check(model, frozen, 1, &report) == ONNX_TRAIN_OK);
  EXPECT(strstr(onnx_train_report_failure(report), "leave nothing of") != NULL);
  onnx_train_report_free(report);
  EXPECT(onnx_train_model_check(model, unknown, 1, &report) == ONNX_TRAIN_USAGE && says("clip"));
  EXPECT(onnx_train_model_check(model, loss, 1, &report) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_report_obstacles(report, &found) == 1 && strstr(found[0].what, "column") != NULL);
  onnx_train_report_free(report);
  onnx_train_report_free(NULL);
  EXPECT(strcmp(onnx_train_report_text(NULL), "") == 0 && strcmp(onnx_train_report_loss(NULL), "") == 0);
  EXPECT(strcmp(onnx_train_report_failure(NULL), "") == 0);
  EXPECT(onnx_train_report_obstacles(NULL, &found) == 0 && onnx_train_report_findings(NULL, &found) == 0);

  EXPECT(onnx_train_model_differentiate(model, loss, 1, &forward, &backward) == ONNX_TRAIN_USAGE && says("loss"));
  EXPECT(onnx_train_model_differentiate(model, NULL, 0, &forward, NULL) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_model_differentiate(model, NULL, 0, &forward, &backward) == ONNX_TRAIN_OK);
  onnx_train_model_free(forward);
  onnx_train_model_free(backward);
  onnx_train_model_free(model);

  EXPECT(onnx_train_learning_rate(schedule, 4, 0, &rate) == ONNX_TRAIN_OK && rate == 0.25);
  EXPECT(onnx_train_learning_rate(schedule, 4, 3, &rate) == ONNX_TRAIN_OK && rate == 0.25);
  EXPECT(onnx_train_learning_rate(step, 1, 0, &rate) == ONNX_TRAIN_USAGE && says("step-every"));
  EXPECT(onnx_train_learning_rate(schedule, 4, -1, &rate) == ONNX_TRAIN_USAGE && says("counted from 0"));
}

/* What a program learns of an entry point, and of a state's memory. */
static void test_descriptions(onnx_train_session* session) {
  const char* const* entries = NULL;
  const onnx_train_port* ports = NULL;
  size_t count = 0;
  void *address = NULL, *again = NULL;
  int32_t on_host = -1;
  float first = 0;
  onnx_train_tensor state;
  onnx_train_plan plan;
  const onnx_train_option batch[] = {{"batch", "2"}};

  EXPECT(onnx_train_session_plan(session, "step", batch, 1, &plan) == ONNX_TRAIN_OK && plan.arena_bytes > 0);
  EXPECT(strstr(plan.text, "kernel") != NULL && strstr(plan.json, "\"kernel\"") != NULL);
  EXPECT(onnx_train_session_plan(session, "stp", batch, 1, &plan) == ONNX_TRAIN_USAGE && says("stp"));

  EXPECT(onnx_train_session_entries(session, &entries, &count) == ONNX_TRAIN_OK && count == 3);
  EXPECT(strcmp(entries[0], "predict") == 0);
  EXPECT(onnx_train_session_inputs(session, "step", &ports, &count) == ONNX_TRAIN_OK && count == 4);
  EXPECT(strcmp(ports[0].name, "x") == 0 && strcmp(ports[0].role, "") == 0 && ports[0].data == NULL);
  EXPECT(ports[0].rank == 2 && ports[0].shape[0] == -1 && ports[0].shape[1] == 4);
  EXPECT(strcmp(ports[2].role, "learning_rate") == 0 && *(const float*)ports[2].data == 0.01f);
  EXPECT(onnx_train_session_outputs(session, "step", &ports, &count) == ONNX_TRAIN_OK && count == 5);
  EXPECT(strcmp(ports[0].role, "loss") == 0 && ports[0].rank == 0);
  EXPECT(onnx_train_session_outputs(session, "predict", &ports, &count) == ONNX_TRAIN_OK && count == 1);
  EXPECT(onnx_train_session_inputs(session, "stp", &ports, &count) == ONNX_TRAIN_USAGE && says("stp"));
  EXPECT(onnx_train_session_outputs(session, "stp", &ports, &count) == ONNX_TRAIN_USAGE && says("stp"));

  EXPECT(onnx_train_session_address(session, "fc1.bias", &address, &on_host) == ONNX_TRAIN_OK && address != NULL);
  EXPECT(onnx_train_session_address(session, "fc1.bias", &again, &on_host) == ONNX_TRAIN_OK && again == address);
  EXPECT(onnx_train_session_address(session, "no such state", &again, &on_host) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_session_state(session, "fc1.bias", &state) == ONNX_TRAIN_OK);
  if (on_host) {
    float* const values = malloc((size_t)state.shape[0] * sizeof(float));
    EXPECT(onnx_train_session_get(session, "fc1.bias", values, (size_t)state.shape[0] * sizeof(float)) ==
           ONNX_TRAIN_OK);
    first = values[0];
    EXPECT(*(const float*)address == first);
    free(values);
  }
}

static float run_step(onnx_train_session* session, const int64_t* labels, onnx_train_status expected) {
  static const float x[8] = {1, 0, 0, 0, 0, 1, 0, 0};
  const int64_t shape[] = {2, 4};
  const onnx_train_tensor inputs[] = {{"x", ONNX_TRAIN_FLOAT, 2, shape, (void*)x, ONNX_TRAIN_HOST_MEMORY},
                                      {"labels", ONNX_TRAIN_INT64, 1, shape, (void*)labels, ONNX_TRAIN_HOST_MEMORY}};
  const onnx_train_tensor* outputs = NULL;
  size_t i, count = 0;
  EXPECT(onnx_train_session_run(session, "step", inputs, 2, &outputs, &count) == expected);
  for (i = 0; i < count; ++i) {
    if (strcmp(outputs[i].name, "loss") == 0) return *(const float*)outputs[i].data;
  }
  return -1;
}

/* One step on 16 samples, the first layer's weights as `x`. */
static float step_on_weights(onnx_train_session* session, void* x, onnx_train_memory memory) {
  static int64_t labels[16];
  const int64_t shape[] = {16, 4};
  const onnx_train_tensor inputs[] = {{"x", ONNX_TRAIN_FLOAT, 2, shape, x, memory},
                                      {"labels", ONNX_TRAIN_INT64, 1, shape, labels, ONNX_TRAIN_HOST_MEMORY}};
  const onnx_train_tensor* outputs = NULL;
  size_t i, count = 0;
  EXPECT(onnx_train_session_run(session, "step", inputs, 2, &outputs, &count) == ONNX_TRAIN_OK);
  for (i = 0; i < count; ++i) {
    if (strcmp(outputs[i].name, "loss") == 0) return *(const float*)outputs[i].data;
  }
  return -1;
}

/* Inputs and states in the memory of the device, which are those of another session. */
static void test_device_memory(const onnx_train_model* training, const char* name) {
  const onnx_train_option device[] = {{"device", name}};
  onnx_train_session *session = NULL, *other = NULL;
  onnx_train_model* changed = NULL;
  onnx_train_device where;
  void *theirs = NULL, *ours = NULL;
  int32_t on_host = -1;
  float copy[64], before[64], after[64];
  const int64_t shape[] = {3};
  const onnx_train_tensor weight = {"fc2.bias", ONNX_TRAIN_FLOAT, 1, shape, copy, ONNX_TRAIN_DEVICE_MEMORY};
  const int is_cpu = strcmp(name, "cpu") == 0;

  EXPECT(onnx_train_session_create(training, device, 1, &session) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_create(training, device, 1, &other) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_device(session, NULL) == ONNX_TRAIN_USAGE);
  int32_t rank = 7, ranks = 7;
  EXPECT(onnx_train_session_ranks(session, &rank, &ranks) == ONNX_TRAIN_OK && rank == 0 && ranks == 1);
  EXPECT(onnx_train_session_ranks(session, NULL, NULL) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_device(session, &where) == ONNX_TRAIN_OK);
  EXPECT(where.type == (is_cpu ? 1 : 12) && where.id == 0 && where.stream == NULL);
  EXPECT(onnx_train_session_address(session, "fc1.weight", &ours, &on_host) == ONNX_TRAIN_OK && on_host == is_cpu);
  EXPECT(onnx_train_session_address(other, "fc1.weight", &theirs, &on_host) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_with_weights(training, &weight, 1, 1, &changed) == ONNX_TRAIN_DATA && says("device memory"));

  /* The same step from the host and within the device; then on the session's own weights, which the step changes. */
  EXPECT(onnx_train_session_get(other, "fc1.weight", copy, sizeof copy) == ONNX_TRAIN_OK);
  EXPECT(step_on_weights(session, theirs, ONNX_TRAIN_DEVICE_MEMORY) ==
         step_on_weights(other, copy, ONNX_TRAIN_HOST_MEMORY));
  EXPECT(onnx_train_session_get(other, "fc1.weight", copy, sizeof copy) == ONNX_TRAIN_OK);
  EXPECT(step_on_weights(session, ours, ONNX_TRAIN_DEVICE_MEMORY) ==
         step_on_weights(other, copy, ONNX_TRAIN_HOST_MEMORY));
  EXPECT(onnx_train_session_get(session, "fc1.weight", before, sizeof before) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(other, "fc1.weight", after, sizeof after) == ONNX_TRAIN_OK);
  EXPECT(memcmp(before, after, sizeof after) == 0 && memcmp(copy, after, sizeof after) != 0);

  EXPECT(onnx_train_session_set(other, "fc1.weight", copy, sizeof copy) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_set_from_device(session, "fc1.weight", theirs, sizeof copy - 4) == ONNX_TRAIN_DATA);
  EXPECT(onnx_train_session_set_from_device(session, "fc1.weight", NULL, sizeof copy) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_session_set_from_device(session, "fc1.weight", theirs, sizeof copy) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(session, "fc1.weight", after, sizeof after) == ONNX_TRAIN_OK);
  EXPECT(memcmp(copy, after, sizeof after) == 0);
  onnx_train_session_free(session);
  onnx_train_session_free(other);
}

static void test_sessions(const onnx_train_model* training, const char* device_name) {
  onnx_train_session *session = NULL, *other = NULL;
  onnx_train_model* snapshot = NULL;
  const onnx_train_option threads[] = {{"threads", "1"}, {"device", device_name}}, device[] = {{"device", "abacus"}};
  const int64_t labels[] = {0, 1}, out_of_range[] = {0, 99};
  const char* const* names = NULL;
  size_t count = 0, bytes = sizeof(float), i;
  const int64_t one = 1, huge[] = {INT64_C(1) << 60, 4};
  float number = 0;
  const onnx_train_tensor long_rank = {"x", ONNX_TRAIN_FLOAT, 1000000, &one, &number, ONNX_TRAIN_HOST_MEMORY};
  const onnx_train_tensor long_axis = {"x", ONNX_TRAIN_FLOAT, 2, huge, &number, ONNX_TRAIN_HOST_MEMORY};
  onnx_train_tensor state;
  float *before, *after;

  EXPECT(onnx_train_session_create(training, device, 1, &session) == ONNX_TRAIN_DEVICE && says("abacus"));
  EXPECT(onnx_train_session_create(training, threads, 2, &session) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_create(training, threads + 1, 1, &other) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_states(session, &names, &count) == ONNX_TRAIN_OK && count > 0);
  EXPECT(onnx_train_session_state(session, names[0], &state) == ONNX_TRAIN_OK && state.type == ONNX_TRAIN_FLOAT);
  for (i = 0; i < (size_t)state.rank; ++i) bytes *= (size_t)state.shape[i];
  before = malloc(bytes);
  after = malloc(bytes);
  EXPECT(onnx_train_session_get(session, names[0], before, bytes - 4) == ONNX_TRAIN_DATA);
  EXPECT(onnx_train_session_get(session, "no such state", before, bytes) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_session_get(session, names[0], before, bytes) == ONNX_TRAIN_OK);

  run_step(session, out_of_range, ONNX_TRAIN_DATA);
  EXPECT(says("99"));
  EXPECT(onnx_train_session_get(session, names[0], after, bytes) == ONNX_TRAIN_OK);
  EXPECT(memcmp(before, after, bytes) == 0);
  EXPECT(run_step(session, labels, ONNX_TRAIN_OK) > 0);
  EXPECT(onnx_train_session_get(session, names[0], after, bytes) == ONNX_TRAIN_OK);
  EXPECT(memcmp(before, after, bytes) != 0);

  EXPECT(onnx_train_session_swap(session, other, names[0]) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(other, names[0], before, bytes) == ONNX_TRAIN_OK);
  EXPECT(memcmp(before, after, bytes) == 0);
  before[0] = 42;
  EXPECT(onnx_train_session_set(other, names[0], before, bytes) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(other, names[0], after, bytes) == ONNX_TRAIN_OK && after[0] == 42);
  EXPECT(onnx_train_session_run(other, "stp", NULL, 0, NULL, NULL) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_session_run(other, "step", NULL, 0, NULL, NULL) == ONNX_TRAIN_DATA);
  EXPECT(onnx_train_session_run(other, "step", &long_rank, 1, NULL, NULL) == ONNX_TRAIN_DATA &&
         says("has rank 1000000"));
  EXPECT(onnx_train_session_run(other, "step", &long_axis, 1, NULL, NULL) == ONNX_TRAIN_DATA &&
         says("no memory holds"));
  EXPECT(onnx_train_session_initialize(other, 1) != ONNX_TRAIN_INTERNAL);

  EXPECT(onnx_train_session_model(other, &snapshot) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_model_save(snapshot, "checkpoint.onnx") == ONNX_TRAIN_OK);
  onnx_train_model_free(snapshot);
  test_descriptions(session);
  onnx_train_session_free(session);
  onnx_train_session_free(other);
  free(before);
  free(after);
}

/* A file of three samples: what it holds, and a training, an evaluation and a prediction on it. */
static void test_files(const onnx_train_model* training, const char* device_name) {
  const onnx_train_option device[] = {{"device", device_name}};
  const onnx_train_option options[] = {{"steps", "2"}, {"no-shuffle", "true"}}, one[] = {{"batch-size", "1"}};
  const onnx_train_option scale[] = {{"scale", "2"}}, unknown[] = {{"epochs", "1"}};
  onnx_train_session *session = NULL, *expected = NULL;
  onnx_train_dataset *dataset = NULL, *none = NULL;
  onnx_train_data files = {0}, arrays = {0};
  const onnx_train_tensor *tensors = NULL, *outputs = NULL;
  const onnx_train_metric* metrics = NULL;
  size_t count = 0, i;
  int64_t samples = 0, batches = 0;
  int32_t axis = -1;
  double loss = 0;
  float weights[64], expected_weights[64];
  FILE* file = fopen("data.csv", "w");

  EXPECT(file != NULL && fputs("x0,x1,x2,x3,labels\n1,2.5,3,4,0\n5,6,7,8,1\n9,8,7,6,2\n", file) >= 0 &&
         fclose(file) == 0);
  EXPECT(onnx_train_session_create(training, device, 1, &session) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_create(training, device, 1, &expected) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_dataset_open("none.csv", session, NULL, &none) == ONNX_TRAIN_FILE && says("no data at none.csv"));
  EXPECT(onnx_train_dataset_open("data.csv", session, "stp", &none) == ONNX_TRAIN_USAGE && says("stp"));
  EXPECT(onnx_train_dataset_open("data.csv", NULL, NULL, &none) == ONNX_TRAIN_USAGE && says("names no arrays"));
  EXPECT(onnx_train_dataset_open("data.csv", NULL, "step", &none) == ONNX_TRAIN_USAGE && says("no session"));
  EXPECT(onnx_train_dataset_open(NULL, session, NULL, &none) == ONNX_TRAIN_USAGE && none == NULL);
  EXPECT(onnx_train_dataset_open("data.csv", session, NULL, &dataset) == ONNX_TRAIN_OK);

  EXPECT(onnx_train_dataset_arrays(dataset, &tensors, &count) == ONNX_TRAIN_OK && count == 2);
  EXPECT(strcmp(tensors[0].name, "labels") == 0 && tensors[0].type == ONNX_TRAIN_INT64 && tensors[0].shape[0] == 3);
  EXPECT(strcmp(tensors[1].name, "x") == 0 && tensors[1].type == ONNX_TRAIN_DOUBLE && tensors[1].rank == 2);
  EXPECT(((const int64_t*)tensors[0].data)[2] == 2 && ((const double*)tensors[1].data)[1] == 2.5);
  EXPECT(onnx_train_dataset_size(dataset, 0, &samples, &batches) == ONNX_TRAIN_OK && samples == 3 && batches == 1);
  EXPECT(onnx_train_dataset_size(dataset, 2, &samples, &batches) == ONNX_TRAIN_OK && batches == 2);
  EXPECT(onnx_train_dataset_size(dataset, -1, &samples, &batches) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_session_sample_axis(session, "step", "x", &axis) == ONNX_TRAIN_OK && axis == 0);
  EXPECT(onnx_train_session_sample_axis(session, "step", "z", &axis) == ONNX_TRAIN_DATA && says("no input 'z'"));
  EXPECT(onnx_train_session_sample_axis(session, "step", "x", NULL) == ONNX_TRAIN_USAGE);

  /* Files train as their arrays do. */
  files.size = arrays.size = sizeof files;
  files.dataset = dataset;
  arrays.arrays = tensors;
  arrays.num_arrays = count;
  EXPECT(onnx_train_fit(session, &files, &files, options, 2, NULL, NULL) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_fit(expected, &arrays, &arrays, options, 2, NULL, NULL) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(session, "fc1.weight", weights, sizeof weights) == ONNX_TRAIN_OK);
  EXPECT(onnx_train_session_get(expected, "fc1.weight", expected_weights, sizeof weights) == ONNX_TRAIN_OK);
  EXPECT(memcmp(weights, expected_weights, sizeof weights) == 0);

  EXPECT(onnx_train_evaluate(session, &files, unknown, 1, NULL, &metrics, &count) == ONNX_TRAIN_USAGE &&
         says("epochs"));
  EXPECT(onnx_train_evaluate(session, &files, NULL, 0, NULL, NULL, &count) == ONNX_TRAIN_USAGE);
  EXPECT(onnx_train_evaluate(session, &files, one, 1, NULL, &metrics, &count) == ONNX_TRAIN_OK && count == 2);
  for (i = 0; i < count; ++i) {
    if (strcmp(metrics[i].name, "loss") == 0) loss = metrics[i].value;
  }
  EXPECT(loss > 0);
  EXPECT(onnx_train_evaluate(session, &arrays, scale, 1, NULL, &metrics, &count) == ONNX_TRAIN_OK && count == 2);
  EXPECT(metrics[0].value != loss && metrics[1].value != loss);
  EXPECT(onnx_train_predict(session, &files, one, 1, NULL, &outputs, &count) == ONNX_TRAIN_OK && count == 1);
  EXPECT(strcmp(outputs[0].name, "logits") == 0 && outputs[0].shape[0] == 3 && outputs[0].shape[1] == 3);
  onnx_train_dataset_free(dataset);
  onnx_train_dataset_free(NULL);
  onnx_train_session_free(session);
  onnx_train_session_free(expected);
}

int main(int argc, char** argv) {
  onnx_train_model* training = NULL;
  if (argc != 3) return 2;
  test_models(argv[1], &training);
  test_reports(argv[1]);
  test_sessions(training, argv[2]);
  test_device_memory(training, argv[2]);
  test_files(training, argv[2]);
  onnx_train_model_free(training);
  return 0;
}
