// Tables of steps: a row says how one is made of its description in tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

template <typename Step>
struct TokenizerStep {
  const char* type;
  Step (*make)(const nlohmann::json&);
};

// Adds the steps that `json` describes; null describes none. A Sequence holds others in its field `list`.
template <typename Step, size_t N>
void add_steps(const nlohmann::json& json, const TokenizerStep<Step> (&rows)[N], const char* kind, const char* list,
               std::vector<Step>* steps, int depth = 0) {
  constexpr int kDeepest = 16;
  if (json.is_null()) return;
  const std::string type = json.at("type");
  if (type == "Sequence") {
    if (depth == kDeepest) fail("the ", kind, " has Sequences in Sequences, deeper than ", kDeepest);
    for (const nlohmann::json& part : json.at(list)) add_steps(part, rows, kind, list, steps, depth + 1);
    return;
  }
  for (const TokenizerStep<Step>& row : rows) {
    if (type == row.type) return steps->push_back(row.make(json));
  }
  fail("the ", kind, " '", type, "' is not known here");
}

}  // namespace onnx_train
