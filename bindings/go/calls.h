// What Go cannot do itself: pointers to functions, and numbers as pointers.
#include <onnx_train/onnx_train.h>

// Sets the data of `count` tensors, at most 8, and calls onnxtrainPinned(call). Go's memory, to which d0 to d7 point,
// stays where it is until this returns.
void onnxtrain_pin(uintptr_t call, onnx_train_tensor** tensors, size_t count, const char* d0, const char* d1,
                   const char* d2, const char* d3, const char* d4, const char* d5, const char* d6, const char* d7);
// Makes `data` those of batches, and `observer` one of these callbacks. `user` is a cgo.Handle.
void onnxtrain_batches(onnx_train_data* data, uintptr_t user);
void onnxtrain_observer(onnx_train_observer* observer, uintptr_t user, int on_step, int on_evaluation,
                        int on_checkpoint, int on_note);
onnx_train_status onnxtrain_generate(onnx_train_session* session, const int64_t* const* prompts, const size_t* lengths,
                                     size_t num_texts, const onnx_train_option* options, size_t count, uintptr_t user);
