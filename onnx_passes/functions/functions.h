// Our own operators (domain "onnx_train"): each is a model-local ONNX function whose body, in standard operators, is
// its meaning. A kernel may run it faster; any runtime can run the body.
//
// A row writes the body for a call (body.h). Where it depends on the call (on a rank, on a number of inputs), the row
// also names the variant: the function's overload.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/inference/builder.h"

namespace onnx_train {

inline constexpr const char* kDomain = "onnx_train";

// A call whose body is to be written. Shapes may be partly unknown.
struct FunctionCall {
  const std::vector<Var>& inputs;
  const Attrs& attrs;

  const Attr* find(const std::string& attribute) const;  // null if the call does not give it
  int64_t integer(const std::string& attribute, int64_t otherwise = 0) const;
  std::string text(const std::string& attribute, const std::string& otherwise = "") const;
};

struct FunctionText {
  std::string text;        // "Name <attribute: int = 1> (x, y) => (z) { ... }", without domain and opset
  std::string overload;    // "" unless the text depends on the call
  std::string inner = {};  // the function of ours, with a fixed text, that the body calls; "" for none
};

struct FunctionRow {
  std::string op;
  std::function<FunctionText(const FunctionCall&)> text;
};

const std::vector<const FunctionRow*>& function_rows();

// The row of an operator. Throws Error when there is none.
const FunctionRow& find_function(const std::string& op);

// Adds a call, and the function to the model if it is not there yet. Throws Error when there is no such row.
std::vector<Var> call(Builder& b, const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                      const Attrs& attrs = {});
// The same for a row that is not one of function_rows().
std::vector<Var> call(Builder& b, const FunctionRow& row, int num_outputs, const std::vector<Var>& inputs,
                      const Attrs& attrs = {});
inline Var call(Builder& b, const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs = {}) {
  return call(b, op, 1, inputs, attrs)[0];
}

}  // namespace onnx_train
