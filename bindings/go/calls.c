#include "calls.h"

#include "_cgo_export.h"

void onnxtrain_pin(uintptr_t call, onnx_train_tensor** tensors, size_t count, const char* d0, const char* d1,
                   const char* d2, const char* d3, const char* d4, const char* d5, const char* d6, const char* d7) {
  const char* data[] = {d0, d1, d2, d3, d4, d5, d6, d7};
  for (size_t i = 0; i < count; ++i) tensors[i]->data = (void*)data[i];
  onnxtrainPinned(call);
}

static onnx_train_next begin(void* user, int64_t epoch) { return onnxtrainBegin((uintptr_t)user, epoch); }

static onnx_train_next next(void* user, const onnx_train_tensor** inputs, size_t* count) {
  return onnxtrainNext((uintptr_t)user, (onnx_train_tensor**)inputs, count);
}

static onnx_train_next on_step(void* user, const onnx_train_step* step) {
  return onnxtrainOnStep((uintptr_t)user, (onnx_train_step*)step);
}

static onnx_train_next on_evaluation(void* user, const onnx_train_evaluation* evaluation) {
  return onnxtrainOnEvaluation((uintptr_t)user, (onnx_train_evaluation*)evaluation);
}

static onnx_train_next on_checkpoint(void* user, const char* path) {
  return onnxtrainOnCheckpoint((uintptr_t)user, (char*)path);
}

static onnx_train_next on_note(void* user, const char* text) { return onnxtrainOnNote((uintptr_t)user, (char*)text); }

static onnx_train_next on_token(void* user, size_t text, int64_t token) {
  return onnxtrainOnToken((uintptr_t)user, text, token);
}

void onnxtrain_batches(onnx_train_data* data, uintptr_t user) {
  data->user = (void*)user;
  data->begin = begin;
  data->next = next;
}

void onnxtrain_observer(onnx_train_observer* observer, uintptr_t user, int steps, int evaluations, int checkpoints,
                        int notes) {
  observer->size = sizeof *observer;
  observer->user = (void*)user;
  observer->on_step = steps ? on_step : NULL;
  observer->on_evaluation = evaluations ? on_evaluation : NULL;
  observer->on_checkpoint = checkpoints ? on_checkpoint : NULL;
  observer->on_note = notes ? on_note : NULL;
}

onnx_train_status onnxtrain_generate(onnx_train_session* session, const int64_t* const* prompts, const size_t* lengths,
                                     size_t num_texts, const onnx_train_option* options, size_t count, uintptr_t user) {
  return onnx_train_generate(session, prompts, lengths, num_texts, options, count, on_token, (void*)user);
}
