// Writes the checkpoints of a training in the background: `save` copies the state and returns; a thread of the writer
// writes the files, with checksums and fsyncs. At most one copy is held and one write is in progress; an earlier `save`
// waits. Errors are thrown by the next call. If there is no memory for the copy, `save` writes before it returns. Files
// are replaced atomically (loading.h): a killed process leaves each file complete, old or new. The trainer owns the
// writer and calls it from one thread.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "runtime/training/checkpoint.h"

namespace onnx_train {

class CheckpointWriter {
 public:
  explicit CheckpointWriter(Session* session);
  ~CheckpointWriter();  // waits for the write in progress and ignores its errors: call `wait` before
  CheckpointWriter(const CheckpointWriter&) = delete;

  // Saves the session's current state at `position` under each of the names. The files of one call are equal and are
  // stored once if the file system allows (share_file).
  void save(const TrainingPosition& position, std::vector<std::string> paths);
  // The same at the end of a run: writes the state directly if it is in host memory, and returns when all files are
  // written. Throws Error when a file could not be written.
  void save_and_wait(const TrainingPosition& position, std::vector<std::string> paths);
  // What a rank that writes nothing does in the place of `save`: gives rank 0 the states that it alone keeps.
  void give_states();
  // Returns when all files are written. Throws Error when one could not be written.
  void wait();
  // Throws Error when a file could not be written so far. Does not wait.
  void check();

  // Bytes of the copy that `save` makes; 0 if it makes none.
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
