#include "runtime/training/checkpoint_writer.h"

#include <utility>

#include "kernels/host.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"

namespace onnx_train {
namespace {

void write_files(const ModelMessage& message, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (path == paths.front() || !share_file(paths.front(), path)) write_checkpoint(message, path);
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(Session* session) : session_(*session) {
  const StateStore& store = session_.state();
  size_t bytes = 0;
  for (size_t i = 0; i < store.names().size(); ++i) {
    bytes += static_cast<size_t>(num_elements(store.shape(i))) * size_of(store.dtype(i));
  }
  const bool fits = bytes <= available_host_memory() / 2;  // the steps need the rest
  // Files are written from host memory, and from one place.
  const bool must = !session_.device().uses_host_memory() || session_.topology().shards_states();
  if (fits || must) copy_bytes_ = bytes;
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CheckpointWriter::check() {
  if (done_) wait();
}

void CheckpointWriter::save(const TrainingPosition& position, std::vector<std::string> paths) {
  if (copy_bytes_ == 0) return save_and_wait(position, std::move(paths));
  wait();
  copy_state();
  const StateContents copied = [&](const std::string& name) { return copy_[session_.state().index(name)]; };
  done_ = false;
  thread_ =
      std::thread([this, message = checkpoint_message(session_.model(), copied, position), paths = std::move(paths)] {
        try {
          write_files(message, paths);
        } catch (...) {
          error_ = std::current_exception();
        }
        done_ = true;
      });
}

void CheckpointWriter::save_and_wait(const TrainingPosition& position, std::vector<std::string> paths) {
  if (!session_.device().uses_host_memory() || session_.topology().shards_states()) {
    save(position, std::move(paths));
    return wait();
  }
  wait();
  StateStore& store = session_.state();
  const StateContents in_place = [&](const std::string& name) {
    const size_t i = store.index(name);
    return Tensor(store.dtype(i), store.shape(i), store.data(i), nullptr);
  };
  write_files(checkpoint_message(session_.model(), in_place, position), paths);
}

void CheckpointWriter::give_states() {
  if (!session_.topology().shards_states()) return;
  session_.collect_choices();
  for (size_t i = 0; i < session_.state().names().size(); ++i) session_.collect_state(i, nullptr);
}

void CheckpointWriter::copy_state() {
  StateStore& store = session_.state();
  const bool on_host = session_.device().uses_host_memory();
  session_.collect_choices();
  for (size_t i = 0; i < store.names().size(); ++i) {
    const bool is_new = copy_.size() == i;
    if (is_new) copy_.emplace_back(store.dtype(i), store.shape(i));
    // A new tensor is zeros that occupy no memory, like moments before the first step.
    if (is_new && on_host && store.keeps(i) && !store.part(i) && is_zero(store.data(i), copy_[i].bytes())) continue;
    session_.collect_state(i, copy_[i].data());
  }
}

}  // namespace onnx_train
