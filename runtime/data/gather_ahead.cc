#include "runtime/data/gather_ahead.h"

#include <system_error>

#include "kernels/host.h"

namespace onnx_train {

GatherAhead::GatherAhead(const Dataset* data, bool shortens) : data_(*data), shortens_(shortens && data->shortens()) {}

void GatherAhead::gather(const Dataset& data, const std::vector<int64_t>& rows, bool shortens, const AugmentKey* key,
                         TensorMap* batch) {
  data.gather(rows.data(), std::ssize(rows), batch, key);
  if (!shortens) return;
  constexpr int64_t kLengths = 16;
  int64_t longest = 1, whole = 1;
  for (const int64_t row : rows) longest = std::max(longest, data.filled(row));
  for (const Dataset::Array& array : data.arrays()) {
    if (const RowReader* reader = array.rows.reader(); reader && !reader->token_axes().empty())
      whole = array.row[reader->token_axes()[0]];
  }
  const int64_t step = (whole + kLengths - 1) / kLengths;
  data.shorten((longest + step - 1) / step * step, batch);
}

int64_t GatherAhead::batches_ahead(const Dataset& data) {
  constexpr int kMost = 8;  // a batch of pictures may take hundreds of megabytes
  return data.makes_rows() ? std::min(num_threads(), kMost) : 0;
}

void GatherAhead::start(NextRows rows, std::optional<AugmentKey> key) {
  ordered_.clear();
  rows_ = std::move(rows);
  key_ = key;
  at_end_ = false;
}

void GatherAhead::order_next() {
  const std::vector<int64_t> rows = rows_();
  at_end_ = rows.empty();
  if (at_end_) return;
  const auto made = [&data = data_, key = key_, rows, shortens = shortens_] {
    Batch batch{static_cast<int64_t>(rows.size()), {}};
    gather(data, rows, shortens, key ? &*key : nullptr, &batch.tensors);
    return batch;
  };
  try {
    ordered_.push_back(std::async(std::launch::async, made));
  } catch (const std::system_error&) {  // no thread to be had
    ordered_.push_back(std::async(std::launch::deferred, made));
  }
}

int64_t GatherAhead::next(TensorMap* batch) {
  const int64_t ahead = batches_ahead(data_);
  if (ahead == 0) {
    const std::vector<int64_t> rows = at_end_ ? std::vector<int64_t>() : rows_();
    at_end_ = rows.empty();
    if (!at_end_) gather(data_, rows, shortens_, nullptr, batch);
    return static_cast<int64_t>(rows.size());
  }
  while (!at_end_ && static_cast<int64_t>(ordered_.size()) < ahead) order_next();
  if (ordered_.empty()) return 0;
  std::future<Batch> first = std::move(ordered_.front());
  ordered_.pop_front();
  Batch made = first.get();
  for (auto& [name, tensor] : made.tensors) (*batch)[name] = std::move(tensor);
  if (!at_end_) order_next();
  return made.samples;
}

}  // namespace onnx_train
