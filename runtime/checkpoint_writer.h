// Writes a training's checkpoints while it goes on: `save` copies the state and returns; a thread of its own writes the
// files, with their checksums and fsyncs. One copy is held and one write is under way: a `save` that comes earlier
// waits. What fails is thrown by the next call. Where the machine has no memory for the copy, `save` writes before it
// returns. Files are written as loading.h says: a process that is killed leaves each complete and old, or complete and
// new. Owned by the trainer; used by one thread.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "runtime/checkpoint.h"

namespace onnx_train {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(Session* session);
  ~CheckpointWriter();  // waits for the write under way; what failed in it is lost: call `wait` before
  CheckpointWriter(const CheckpointWriter&) = delete;

  // The session's state as it is now, at `position`, under each of the names. Files of one call are equal, and are
  // stored once where the file system can (share_file).
  void save(const TrainingPosition& position, std::vector<std::string> paths);
  // The same with nothing left to compute: writes the state from where it is, if that is host memory, and returns when
  // all is written. Throws Error when something could not be.
  void save_and_wait(const TrainingPosition& position, std::vector<std::string> paths);
  // Returns when all is written. Throws Error when something could not be.
  void wait();
  // Throws Error when something could not be written so far; does not wait.
  void check();

  // Bytes of the copy that `save` makes; 0 where it makes none.
  size_t copy_bytes() const { return copy_bytes_; }

 private:
  void copy_state();

  Session& session_;
  size_t copy_bytes_ = 0;
  std::vector<Tensor> copy_;
  std::thread thread_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // the thread's, until it has ended
};

}  // namespace onnx_train
