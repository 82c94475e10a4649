/* Trains on arrays in C, stops when the loss is low, and exports the trained model.
 *   c_loop MODEL.onnx TRAINED.onnx */
#include <onnx_train/onnx_train.h>
#include <stdio.h>
#include <stdlib.h>

#define SAMPLES 256

static void check(onnx_train_status status) {
  if (status == ONNX_TRAIN_OK) return;
  fprintf(stderr, "%s\n", onnx_train_last_error());
  exit(1);
}

static onnx_train_next on_step(void* user, const onnx_train_step* step) {
  *(double*)user = step->loss;
  return step->loss < 0.1 ? ONNX_TRAIN_STOP : ONNX_TRAIN_CONTINUE;
}

int main(int argc, char** argv) {
  static float x[SAMPLES * 4];
  static int64_t labels[SAMPLES];
  const int64_t shape[] = {SAMPLES, 4};
  const onnx_train_tensor arrays[] = {{"x", ONNX_TRAIN_FLOAT, 2, shape, x, ONNX_TRAIN_HOST_MEMORY},
                                      {"labels", ONNX_TRAIN_INT64, 1, shape, labels, ONNX_TRAIN_HOST_MEMORY}};
  const onnx_train_option build[] = {{"loss", "cross_entropy"}, {"optimizer", "adamw"}};
  const onnx_train_option options[] = {{"epochs", "200"}, {"batch-size", "32"}, {"lr", "0.01"}};
  onnx_train_model *forward = NULL, *training = NULL, *trained = NULL, *inference = NULL;
  onnx_train_session* session = NULL;
  onnx_train_stop_reason reason;
  double loss = 0;
  onnx_train_data data = {0};
  onnx_train_observer observer = {0};
  int i;
  if (argc != 3) return fprintf(stderr, "usage: %s MODEL.onnx TRAINED.onnx\n", argv[0]), 2;

  for (i = 0; i < SAMPLES * 4; ++i) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (i = 0; i < SAMPLES; ++i) labels[i] = x[4 * i] > x[4 * i + 1] ? 0 : 1;
  data.size = sizeof data;
  data.arrays = arrays;
  data.num_arrays = 2;
  observer.size = sizeof observer;
  observer.user = &loss;
  observer.on_step = on_step;

  check(onnx_train_model_load(argv[1], &forward));
  check(onnx_train_model_build(forward, build, 2, &training));
  check(onnx_train_session_create(training, NULL, 0, &session));
  check(onnx_train_fit(session, &data, NULL, options, 3, &observer, &reason));
  printf("%s, loss %.3f\n", reason == ONNX_TRAIN_STOPPED ? "stopped" : "not stopped", loss);
  check(onnx_train_session_model(session, &trained));
  check(onnx_train_model_export(trained, &inference));
  check(onnx_train_model_save(inference, argv[2]));
  onnx_train_session_free(session);
  onnx_train_model_free(inference);
  onnx_train_model_free(trained);
  onnx_train_model_free(training);
  onnx_train_model_free(forward);
  return reason == ONNX_TRAIN_STOPPED ? 0 : 1;
}
