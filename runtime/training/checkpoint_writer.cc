#include "runtime/training/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "kernels/collectives.h"
#include "kernels/host.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/training/checkpoint_checksum.h"

namespace onnx_train {
namespace {

// Of tensors that the base has, the place of the checksum says so.
std::vector<std::string> marked(std::vector<std::string> checksums, const CheckpointBase& base) {
  for (size_t i = 0; i < checksums.size(); ++i) {
    if (base.has(i)) checksums[i] = kInBase;
  }
  return checksums;
}

void write_files(ModelMessage message, const std::vector<std::string>& paths, const CheckpointBase* base) {
  if (base) {
    base->refer(&message);
    const size_t tensors = stored_tensors(message.proto).size();
    write_sharded_checkpoint(message, marked(std::vector<std::string>(tensors), *base), paths);
  } else {
    for (const std::string& path : paths) {
      if (path == paths.front() || !share_file(paths.front(), path)) write_checkpoint(message, path);
    }
  }
  remove_unused_shards(split_path(paths.front()).first);  // of the checkpoints that were there
}

}  // namespace

struct CheckpointWriter::Pending {
  std::string folder, name;  // of the run, and beside the model
  ModelMessage model = {};   // of rank 0
  std::vector<std::string> paths = {};
};

CheckpointWriter::CheckpointWriter(Session* session, const std::string& shards, size_t most_in_one_file,
                                   BaseOptions base)
    : session_(*session), base_options_(std::move(base)), most_in_one_file_(most_in_one_file) {
  const Topology& topology = session_.topology();
  if (shards == "on" && topology.is_tensor_parallel()) {
    throw UsageError(
        "--checkpoint-shards on: with --tensor-parallel no process has whole states, and the first one "
        "collects their parts; leave it out");
  }
  must_shard_ = shards == "on";
  may_shard_ = must_shard_ || (shards == "auto" && topology.shards_states() && !topology.is_tensor_parallel());
  plan_shards();
}

void CheckpointWriter::plan_shards() {
  if (may_shard_) layout_ = lay_out_shards(session_.model(), session_.topology(), base());
  // A larger one needs files beside the model in any case.
  writes_shards_ = may_shard_ && (must_shard_ || layout_.bytes > most_in_one_file_);
  plan_copy();
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::plan_copy() {
  const StateStore& store = session_.state();
  const Topology& topology = session_.topology();
  size_t bytes = 0;
  for (size_t i = 0; i < store.names().size(); ++i) {
    bytes += static_cast<size_t>(num_elements(store.shape(i))) * size_of(store.dtype(i));
  }
  if (writes_shards_) bytes = layout_.state_bytes[static_cast<size_t>(topology.rank())];
  const bool fits = bytes <= available_host_memory() / 2;  // the steps need the rest
  // Files are written from host memory, and from one place.
  const bool must = !session_.device().uses_host_memory() || (topology.shards_states() && !writes_shards_);
  copy_bytes_ = fits || must ? bytes : 0;
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) {
    pending_.reset();
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  if (!pending_) return;
  commit();
  wait();
}

void CheckpointWriter::check() {
  if (done_ && error_) wait();
}

void CheckpointWriter::in_background(std::function<void()> write) {
  done_ = false;
  thread_ = std::thread([this, write = std::move(write)] {
    try {
      write();
    } catch (...) {
      error_ = std::current_exception();
    }
    done_ = true;
  });
}

void CheckpointWriter::save(const TrainingPosition& position, const std::vector<std::string>& paths) {
  save(position, paths, /*at_end=*/false);
}

void CheckpointWriter::save_and_wait(const TrainingPosition& position, const std::vector<std::string>& paths) {
  save(position, paths, /*at_end=*/true);
  wait();
}

void CheckpointWriter::save(const TrainingPosition& position, const std::vector<std::string>& paths, bool at_end) {
  wait();
  if (!agree(paths)) return;
  find_base(paths.empty() ? "" : split_path(paths.front()).first);
  const bool in_place = copy_bytes_ == 0 || (at_end && session_.device().uses_host_memory());
  if (writes_shards_) {
    open_folder(position.step, split_path(paths.front()).first);
    if (writes_shards_) return save_shard(position, paths, in_place);
  }
  if (rank() > 0) return give_states();
  save_whole(position, paths, in_place && !session_.topology().shards_states());
}

void CheckpointWriter::save_whole(const TrainingPosition& position, const std::vector<std::string>& paths,
                                  bool in_place) {
  if (in_place) {
    const StateContents present = [&](const std::string& name) { return kept(name, /*in_place=*/true); };
    return write_files(checkpoint_message(session_.model(), present, position), paths, base());
  }
  copy_state();
  const StateContents copied = [&](const std::string& name) { return copy_[session_.state().index(name)]; };
  in_background([this, message = checkpoint_message(session_.model(), copied, position), paths] {
    write_files(message, paths, base());
  });
}

// ---- The base

// At the first checkpoint, since a run writes the model that it builds after this writer is made. Later it is found
// again whether the files are still there. Where ranks write together, all have the base or none.
void CheckpointWriter::find_base(const std::string& folder) {
  const Topology& topology = session_.topology();
  if (!writes_shards_ && rank() > 0) return;
  const bool several = writes_shards_ && topology.ranks() > 1;
  const auto numbers_of_ranks = [&](uint32_t own) {
    return several ? topology.collectives()->gather("the base of a checkpoint", own) : std::vector<uint32_t>{own};
  };
  std::string changed;
  if (!has_looked_for_base_) {
    has_looked_for_base_ = true;
    if (base_options_.when == "whole") return;
    CheckpointBase found(session_.model(), base_options_, folder);
    const auto own = static_cast<uint32_t>(found.empty() ? 0 : 1 + found.bytes() % 0xffffffff);
    const std::vector<uint32_t> all = numbers_of_ranks(own);
    if (std::ranges::count(all, own) != std::ssize(all)) changed = "not all ranks find the frozen weights in a file";
    if (own != 0 && changed.empty()) {
      base_ = std::move(found);
      return plan_shards();
    }
    if (base_options_.when == "refer" && changed.empty()) changed = "no file holds the frozen weights as they are";
  } else if (base_) {
    if (std::ranges::count(numbers_of_ranks(base_->is_in_place() ? 1 : 0), 0U) > 0)
      changed = concat(base_->path(), " is not there any more, or another file");
  }
  if (changed.empty()) return;
  note_ = concat(changed, "; the frozen weights are written with each checkpoint");
  base_.reset();
  plan_shards();
}

// Whether files are written, of which rank 0 knows. It is the same at each call.
bool CheckpointWriter::agree(const std::vector<std::string>& paths) {
  const Topology& topology = session_.topology();
  if (!topology.shards_states() && !writes_shards_) return rank() == 0 && !paths.empty();
  if (topology.ranks() == 1) return !paths.empty();
  if (has_files_) return *has_files_;
  const std::vector<uint32_t> have = topology.collectives()->gather("the files of a checkpoint", paths.empty() ? 0 : 1);
  has_files_ = have[0] == 1;
  const auto without = std::ranges::find(have, 0U);
  if (*has_files_ && writes_shards_ && without != have.end())
    give_up_shards(concat("rank ", without - have.begin(), " has no folder of the run"));
  return *has_files_;
}

void CheckpointWriter::give_up_shards(const std::string& why) {
  writes_shards_ = may_shard_ = must_shard_ = false;
  note_ = concat(why, "; rank 0 collects the states and writes the checkpoints alone");
  plan_copy();
}

// ---- Shards

// Of a step, which all ranks write into; at the first one they find out whether all see the same.
void CheckpointWriter::open_folder(int64_t step, const std::string& folder) {
  const Topology& topology = session_.topology();
  uint32_t number = rank() == 0 ? make_shard_folder(folder, step) : 0;
  if (topology.ranks() > 1) number = topology.collectives()->gather("the folder of a checkpoint", number)[0];
  pending_ = std::make_shared<Pending>(Pending{.folder = folder, .name = shard_folder(step, number)});
  const std::string path = concat(folder, "/", pending_->name);
  if (!is_shared_) is_shared_ = topology.ranks() == 1 || share_folder(path);
  if (*is_shared_) return;
  pending_.reset();
  remove_file(concat(path, "/", shard_file(rank())));
  if (rank() == 0) platform::remove_folder(path);
  give_up_shards(concat("not all ranks see ", path, " of rank 0: they need one file system for --checkpoint-shards"));
}

// Each rank makes its file, and rank 0 looks whether it has all: another machine may have a folder of this name.
bool CheckpointWriter::share_folder(const std::string& path) {
  Collectives& ranks = *session_.topology().collectives();
  const bool has_folder = folder_exists(path);
  if (has_folder) write_file(concat(path, "/", shard_file(rank())), "");
  const std::vector<uint32_t> have = ranks.gather("whether ranks have the folder", has_folder ? 1 : 0);
  bool all = std::ranges::find(have, 0U) == have.end();
  for (int r = 0; r < ranks.size() && rank() == 0; ++r) all = all && path_exists(concat(path, "/", shard_file(r)));
  return ranks.gather("whether ranks share the folder", all ? 1 : 0)[0] == 1;
}

void CheckpointWriter::save_shard(const TrainingPosition& position, const std::vector<std::string>& paths,
                                  bool in_place) {
  session_.collect_choices();
  const StateContents own = [&](const std::string& name) { return kept(name, in_place); };
  std::vector<Tensor> tensors;
  ModelMessage model = make_shards(session_.model(), layout_, rank(), own, position, pending_->name, &tensors);
  if (rank() == 0) {
    if (base_) base_->refer(&model);
    pending_->model = std::move(model);
  }
  pending_->paths = paths;
  const std::string path = concat(pending_->folder, "/", pending_->name, "/", shard_file(rank()));
  in_background([this, path, tensors = std::move(tensors)] { checksums_ = write_shard(path, tensors); });
  if (in_place && thread_.joinable()) thread_.join();  // before a step changes the state
}

void CheckpointWriter::commit() {
  if (thread_.joinable()) thread_.join();
  const Topology& topology = session_.topology();
  std::string text;
  for (const std::string& checksum : checksums_) text += checksum + " ";
  std::vector<std::string> texts(1);
  if (topology.ranks() > 1) texts = topology.gather("the checksums of a checkpoint", text);
  texts[0] = text;
  const std::shared_ptr<Pending> pending = std::exchange(pending_, nullptr);
  if (rank() > 0) return;
  std::vector<std::string> checksums = in_order(layout_, texts);
  if (base_) checksums = marked(std::move(checksums), *base_);
  in_background([pending, checksums = std::move(checksums), layout = layout_] {
    check_shards(concat(pending->folder, "/", pending->name), layout);
    write_sharded_checkpoint(pending->model, checksums, pending->paths);
    remove_unused_shards(pending->folder);
  });
}

// ---- States

void CheckpointWriter::give_states() {
  session_.collect_choices();
  for (size_t i = 0; i < session_.state().names().size(); ++i) session_.collect_state(i, nullptr);
}

// The value of a state that this rank has, or a copy of it, which stays until the next checkpoint.
Tensor CheckpointWriter::kept(const std::string& state, bool in_place) {
  StateStore& store = session_.state();
  const size_t i = store.index(state);
  const bool on_host = session_.device().uses_host_memory();
  if (in_place && on_host) return {store.dtype(i), store.shape(i), store.data(i), nullptr};
  copy_.resize(store.names().size());
  const bool is_new = copy_[i].empty();
  if (is_new) copy_[i] = Tensor(store.dtype(i), store.shape(i));
  // A new tensor is zeros that occupy no memory, like moments before the first step.
  if (!is_new || !on_host || !is_zero(store.data(i), copy_[i].bytes())) store.read(i, copy_[i].data());
  return copy_[i];
}

void CheckpointWriter::copy_state() {
  const StateStore& store = session_.state();
  const bool on_host = session_.device().uses_host_memory();
  session_.collect_choices();
  copy_.resize(store.names().size());
  for (size_t i = 0; i < store.names().size(); ++i) {
    const bool is_new = copy_[i].empty();
    if (is_new) copy_[i] = Tensor(store.dtype(i), store.shape(i));
    // As in `kept`.
    if (is_new && on_host && store.keeps(i) && !store.part(i) && is_zero(store.data(i), copy_[i].bytes())) continue;
    session_.collect_state(i, copy_[i].data());
  }
}

}  // namespace onnx_train
