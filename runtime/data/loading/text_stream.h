// Samples of texts that are read while a training goes on: --stream. Documents are read into windows of
// --shuffle-buffer samples, and the samples of a window come in a random order, or in theirs. The next window is read
// by a thread while the one before is trained on, so that two are in memory. All depends on files, options and seed
// alone: ranks read the same windows, and take their batches of each round. A training that is resumed begins with the
// window that it was in.
//
// Standard input is read once, by one process; it may go on without an end. A training that is resumed skips what it
// has read, if the first bytes are those of the input that it had; another input is read from its start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/loading/batch_source.h"
#include "runtime/data/loading/source.h"

namespace onnx_train {

// The files that a training streams, in their order; {"-"} for standard input. Throws Error where there is none.
std::vector<std::string> streamed_files(const std::string& path, DataRole role);

class TextStream {
 public:
  // `inputs` are those of the entry point that trains. Reads the first window. Throws Error that names the file.
  TextStream(const std::vector<std::string>& paths, const Model& model, const EntryName& entry,
             const ReadOptions& options, int64_t window);
  // The samples of the first window, and what is said of it.
  const Dataset& first() const { return *first_; }
  const DataNotes& notes() const { return notes_; }

  // A training's batches, which share the stream. Those of standard input can be made once.
  std::unique_ptr<BatchSource> batches(int64_t batch_size, uint64_t seed, bool shuffle, bool drop_last) const;

 private:
  friend class StreamBatches;
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<const Dataset> first_;
  DataNotes notes_;
};

}  // namespace onnx_train
