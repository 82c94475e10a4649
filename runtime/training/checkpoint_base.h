// The base of a run's checkpoints: the weights that it leaves as they are, where a file beside holds them already. A
// checkpoint then refers to that file (onnx_passes/io/base_files.h), and holds what the training changes. Owned by the
// writer of checkpoints; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/io/base_files.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct ModelMessage;

struct BaseOptions {
  std::string when = "auto";  // "refer", "whole", or "auto": refer where that is most of a large checkpoint
  std::string file = {};      // a training model that may hold the frozen weights; "": the files that the model is of
};

class CheckpointBase {
 public:
  // Finds the frozen weights of a session's model. `folder` is that of the checkpoints, whose own files are no base,
  // nor are other checkpoints: they are replaced as their runs go on. Compares contents with those of `options.file`.
  CheckpointBase(const Model& model, const BaseOptions& options, const std::string& folder);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }  // that checkpoints do not hold
  // Whether one of stored_tensors is in the base.
  bool has(size_t i) const { return places_[i].has_value(); }
  // The file, or the first of several.
  const std::string& path() const { return files_.front().absolute; }
  // Whether the files still are those that were found.
  bool is_in_place() const;
  // Makes the tensors of the session's model refer to the base, and records it. The first call reads all of the base.
  void refer(ModelMessage* message) const;

 private:
  struct Place {
    size_t file;  // in files_
    size_t offset;
    Tensor contents;
  };
  bool add(size_t i, const Tensor& contents, const std::string& folder);
  void compute_hashes() const;

  std::vector<std::optional<Place>> places_;  // of each of stored_tensors
  mutable std::vector<BaseFile> files_;       // without hashes until `refer`
  size_t bytes_ = 0;
};

}  // namespace onnx_train
