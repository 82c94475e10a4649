// What a path, or a program, gives: arrays by name, and what is known of them. Readers of files make one for all that a
// file holds, loading/source.h one for the inputs of a model, and pictures become arrays in it (images/rows.h); a
// Dataset holds the arrays against the inputs. Plain values; any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/rows.h"

namespace onnx_train {

struct PictureFiles;

// Rows of the data from one place, and which share of the samples a training takes from them, relative to the others.
struct DataPart {
  std::string name;
  int64_t rows;
  double weight;
};

struct DataArrays {
  std::map<std::string, Rows> arrays = {};
  std::shared_ptr<const PictureFiles> pictures = nullptr;  // the samples, where they are files; null for arrays
  std::string summary = "";                                // "" or a line about what the files hold
  std::vector<std::string> notes = {};                     // what was guessed, or may surprise
  std::map<std::string, std::string> metadata = {};        // Dataset::metadata
  std::vector<DataPart> parts = {};                        // Dataset::parts

  const Rows* find(const std::string& name) const {  // null if there is none
    const auto found = arrays.find(name);
    return found == arrays.end() ? nullptr : &found->second;
  }
};

inline DataArrays arrays_of(const TensorMap& tensors) { return {.arrays = {tensors.begin(), tensors.end()}}; }

}  // namespace onnx_train
