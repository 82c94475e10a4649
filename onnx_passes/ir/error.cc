#include "onnx_passes/ir/error.h"

#include <algorithm>
#include <iterator>

namespace onnx_train {
namespace {

constexpr ErrorRow kErrorRows[] = {
#define ONNX_TRAIN_ERROR(name, number, kind, title) {ErrorCode::name, ErrorCode::kind, "OT" #number, title},
#include "onnx_passes/ir/error_codes.def"
};

// Null for a kind.
const ErrorRow* find_error_row(ErrorCode code) {
  const auto* const row =
      std::find_if(std::begin(kErrorRows), std::end(kErrorRows), [&](const ErrorRow& r) { return r.code == code; });
  return row == std::end(kErrorRows) ? nullptr : row;
}

}  // namespace

std::span<const ErrorRow> error_rows() { return kErrorRows; }

ErrorCode Error::kind() const {
  const ErrorRow* const row = find_error_row(code_);
  return row ? row->kind : code_;
}

const char* Error::code_text() const {
  const ErrorRow* const row = find_error_row(code_);
  return row ? row->text : "";
}

}  // namespace onnx_train
