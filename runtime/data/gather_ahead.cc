#include "runtime/data/gather_ahead.h"

#include <system_error>

#include "kernels/host.h"

namespace onnx_train {

GatherAhead::GatherAhead(const Dataset* data) : data_(*data) {}

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
  const auto gather = [&data = data_, key = key_, rows] {
    Batch batch{static_cast<int64_t>(rows.size()), {}};
    data.gather(rows.data(), batch.samples, &batch.tensors, key ? &*key : nullptr);
    return batch;
  };
  try {
    ordered_.push_back(std::async(std::launch::async, gather));
  } catch (const std::system_error&) {  // no thread to be had
    ordered_.push_back(std::async(std::launch::deferred, gather));
  }
}

int64_t GatherAhead::next(TensorMap* batch) {
  const int64_t ahead = batches_ahead(data_);
  if (ahead == 0) {
    const std::vector<int64_t> rows = at_end_ ? std::vector<int64_t>() : rows_();
    at_end_ = rows.empty();
    if (!at_end_) data_.gather(rows.data(), static_cast<int64_t>(rows.size()), batch);
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
