// One call of fsync that fails, in this process. The object says which while it lives; one at a time, in one thread.
#pragma once

namespace onnx_train {

class FailingFsync {
 public:
  explicit FailingFsync(int number);  // counted from 0, from now on
  ~FailingFsync();
  FailingFsync(const FailingFsync&) = delete;

  bool reached() const;
};

}  // namespace onnx_train
