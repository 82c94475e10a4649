// Writes the checkpoints of a training in the background: `save` copies the state and returns; a thread of the writer
// writes the files, with checksums and fsyncs. At most one copy is held and one write is in progress; an earlier `save`
// waits. Errors are thrown by the next call. If there is no memory for the copy, `save` writes before it returns. Files
// are replaced atomically (loading.h): a killed process leaves each file complete, old or new. The trainer owns the
// writer and calls it from one thread.
//
// Of several ranks all call the same functions in one order, with the same files. Rank 0 writes, and is given the
// states that others keep; or each rank writes its shard (checkpoint_shards.h), and rank 0 puts the model into place
// once all have: `commit`.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "onnx_passes/io/loading.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/checkpoint_shards.h"

namespace onnx_train {

class CheckpointWriter {
 public:
  // `shards`: "on", "off", or "auto", where ranks share out states and a checkpoint is too large for one file.
  explicit CheckpointWriter(Session* session, const std::string& shards = "auto",
                            size_t most_in_one_file = kMaxMessageBytes, BaseOptions base = {.when = "whole"});
  ~CheckpointWriter();  // waits for the write in progress and ignores its errors: call `wait` before
  CheckpointWriter(const CheckpointWriter&) = delete;

  // Saves the session's current state at `position` under each of the names, all in one folder. The files of one call
  // are equal and are stored once if the file system allows (share_file). Writes nothing where rank 0 gives no names.
  void save(const TrainingPosition& position, const std::vector<std::string>& paths);
  // The same at the end of a run: writes the state directly if it is in host memory, and returns when all files are
  // written. Throws Error when a file could not be written.
  void save_and_wait(const TrainingPosition& position, const std::vector<std::string>& paths);
  // Whether this rank has written its shard of a checkpoint that is not in place yet. Does not wait.
  bool is_written() const { return pending_ && done_ && !error_; }
  // Puts the checkpoint of shards into place. All ranks call it once all have written, or to wait for that.
  void commit();
  // Returns when all files are written. Throws Error when one could not be written.
  void wait();
  // Throws Error when a file could not be written so far. Does not wait.
  void check();

  // Bytes of the copy that `save` makes; 0 if it makes none.
  size_t copy_bytes() const { return copy_bytes_; }
  bool writes_shards() const { return writes_shards_; }
  // The frozen weights that checkpoints do not hold, known after the first `save`; null: they hold all.
  const CheckpointBase* base() const { return base_ ? &*base_ : nullptr; }
  // Why no shards are written though they were to be, or why the base is written again, known after `save`; ""
  // otherwise.
  const std::string& note() const { return note_; }

 private:
  struct Pending;  // a checkpoint of shards that is not in place yet

  void save(const TrainingPosition& position, const std::vector<std::string>& paths, bool at_end);
  void save_whole(const TrainingPosition& position, const std::vector<std::string>& paths, bool in_place);
  void save_shard(const TrainingPosition& position, const std::vector<std::string>& paths, bool in_place);
  bool agree(const std::vector<std::string>& paths);
  void open_folder(int64_t step, const std::string& folder);
  void find_base(const std::string& folder);
  void plan_shards();
  bool share_folder(const std::string& path);
  void give_up_shards(const std::string& why);
  void plan_copy();
  void give_states();
  void copy_state();
  Tensor kept(const std::string& state, bool in_place);
  void in_background(std::function<void()> write);
  int rank() const { return session_.topology().rank(); }

  Session& session_;
  const BaseOptions base_options_;
  const size_t most_in_one_file_;
  bool has_looked_for_base_ = false;
  std::optional<CheckpointBase> base_;
  bool must_shard_ = false, may_shard_ = false;
  bool writes_shards_ = false;
  ShardLayout layout_;  // of shards
  std::string note_;
  size_t copy_bytes_ = 0;
  std::vector<Tensor> copy_;
  std::optional<bool> has_files_;  // rank 0 gives names; agreed on at the first `save`
  std::optional<bool> is_shared_;  // all ranks see one folder
  std::shared_ptr<Pending> pending_;
  std::vector<std::string> checksums_;  // of this rank's shard, the thread's until it has ended
  std::thread thread_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // the thread's, until `done_`
};

}  // namespace onnx_train
