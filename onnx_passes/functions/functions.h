// Our own operators (domain "onnx_train"): each is a model-local ONNX function whose body, in standard operators, is
// its meaning. A kernel may run it faster; any runtime can run the body.
//
// A row holds the body as ONNX text. Where the text depends on the call (on a rank, on a number of inputs), the row
// writes it for the call and names the variant: the function's overload.
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
};

struct FunctionText {
  std::string text;        // "Name <attribute: int = 1> (x, y) => (z) { ... }", without domain and opset
  std::string overload;    // "" unless the text depends on the call
  std::string inner = {};  // the function of ours, with a fixed text, that the body calls; "" for none
};

struct FunctionRow {
  const char* op;
  std::function<FunctionText(const FunctionCall&)> text;
};

// A row whose body is the same for every call.
FunctionRow function(const char* op, const char* text);

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

// The families, one file each. A new family adds its line here and in function_rows().
std::vector<FunctionRow> activation_functions();     // activations.cc
std::vector<FunctionRow> convolution_functions();    // convolutions.cc
std::vector<FunctionRow> normalization_functions();  // normalization.cc
std::vector<FunctionRow> indexing_functions();       // indexing.cc
std::vector<FunctionRow> loss_functions();           // losses.cc
std::vector<FunctionRow> update_functions();         // updates.cc
std::vector<FunctionRow> random_functions();         // random.cc: Philox streams, Dropout, initial weights
std::vector<FunctionRow> precision_functions();      // precision.cc: rounding to 16 bits
std::vector<FunctionRow> collective_functions();     // collectives.cc: what ranks compute together

}  // namespace onnx_train
