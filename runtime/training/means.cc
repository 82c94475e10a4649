#include "runtime/training/means.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

// The sum of the values of those that count.
template <typename Parts, typename Counts, typename ValueOf>
double sum_of(const Parts& parts, const Counts& counts, const ValueOf& value) {
  double sum = 0;
  bool any = false;
  for (const auto& part : parts) {
    if (!counts(part)) continue;
    sum += value(part);
    any = true;
  }
  return any ? sum : std::nan("");
}

const Value* output_of(const EntryPoint& entry, const char* role, const std::string& of) {
  for (const Value* output : entry.algorithm->outputs()) {
    if (output->has_role(role) && output->role()->of == of) return output;
  }
  return nullptr;
}

// A scalar output; not a number if there is none.
double scalar_of(const TensorMap& outputs, const std::string& name) {
  const auto found = outputs.find(name);
  return found == outputs.end() || found->second.size() != 1 ? std::nan("") : found->second.at(0);
}

// An accuracy is a mean of zeros and ones, so that its sum is whole; its float32 is off by up to 2^-24 of it.
double whole_sum(const Mean& accuracy) {
  const double whole = std::nearbyint(accuracy.sum);
  return std::abs(accuracy.sum - whole) <= std::ldexp(accuracy.count, -23) ? whole : accuracy.sum;
}

}  // namespace

void LossMean::add(const LossMean& batch) {
  parts.resize(std::max(parts.size(), batch.parts.size()));
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    parts[i].mean.sum += batch.parts[i].mean.sum;
    parts[i].mean.count += batch.parts[i].mean.count;
    parts[i].sums = batch.parts[i].sums;
  }
}

bool LossMean::counts() const {
  return std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.mean.count != 0; });
}

double LossMean::value() const {
  return sum_of(
      parts, [](const Part& p) { return p.mean.count != 0; }, [](const Part& p) { return p.value(); });
}

void RunningLoss::add(const LossMean& step) {
  parts.resize(std::max(parts.size(), step.parts.size()));
  for (size_t i = 0; i < step.parts.size(); ++i) {
    parts[i].sum += step.parts[i].mean.sum;
    parts[i].count += step.parts[i].sums ? 1 : step.parts[i].mean.count;
  }
}

bool RunningLoss::counts() const {
  return std::any_of(parts.begin(), parts.end(), [](const Mean& mean) { return mean.count != 0; });
}

double RunningLoss::value() const {
  return sum_of(
      parts, [](const Mean& m) { return m.count != 0; }, [](const Mean& m) { return m.value(); });
}

LossReader::LossReader(const Session& session, const EntryName& entry) {
  const EntryPoint* point = session.model().find_entry_point(entry);
  if (!point) return;
  const auto name = [&](const char* role, const std::string& of = "") {
    const Value* output = output_of(*point, role, of);
    if (output) names_.push_back(output->name());
    return output ? output->name() : std::string();
  };
  const auto with_samples = [&](Output output, const char* role) {
    if (output.count.empty()) output.sums = kind_of_output(session.model(), role) == "sum";
    if (output.count.empty() && !output.value.empty() && !output.sums) knows_counts_ = false;
    return output;
  };
  loss_ = name(roles::kLoss);
  accuracy_ = with_samples({name(roles::kAccuracy), name(roles::kAccuracyCount)}, roles::kAccuracy);
  for (size_t i = 0;; ++i) {
    const std::string part = name(roles::kLossPart, std::to_string(i));
    if (part.empty()) break;
    const std::string count = name(roles::kLossPartCount, std::to_string(i));
    parts_.push_back({part, count, count.empty()});
  }
  if (parts_.empty() && !loss_.empty()) parts_ = {with_samples({loss_, name(roles::kLossCount)}, roles::kLoss)};
}

bool LossReader::reads(const std::string& output) const {
  return std::find(names_.begin(), names_.end(), output) != names_.end();
}

void LossReader::add(const Output& output, const TensorMap& outputs, int64_t samples, Mean* mean) const {
  const double n = output.sums            ? 1
                   : output.count.empty() ? static_cast<double>(samples)
                                          : scalar_of(outputs, output.count);
  mean->add(scalar_of(outputs, output.value), n);
}

void LossReader::add(const TensorMap& outputs, int64_t samples, LossMean* loss, Mean* accuracy) const {
  loss->parts.resize(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    loss->parts[i].sums = parts_[i].sums;
    add(parts_[i], outputs, samples, &loss->parts[i].mean);
  }
  if (!has_accuracy()) return;
  Mean batch;
  add(accuracy_, outputs, samples, &batch);
  accuracy->sum += whole_sum(batch);
  accuracy->count += batch.count;
}

TensorMap of_rank(const Session& session, const TensorMap& outputs, size_t rank) {
  if (!session.topology().shares_batches()) return outputs;
  TensorMap own;
  for (const auto& [name, all] : outputs) {
    if (all.shape().empty()) {
      own[name] = all;  // the same on all ranks
      continue;
    }
    const Shape shape(all.shape().begin() + 1, all.shape().end());
    const size_t bytes = static_cast<size_t>(num_elements(shape)) * size_of(all.dtype());
    own[name] = Tensor(all.dtype(), shape);
    if (bytes > 0) std::memcpy(own[name].data(), all.data<std::byte>() + rank * bytes, bytes);
  }
  return own;
}

std::string kind_of_output(const Model& model, const std::string& role) {
  const auto kinds = nlohmann::json::parse(model.metadata("onnx_train.outputs"), nullptr, /*allow_exceptions=*/false);
  const bool known = kinds.is_object() && kinds.contains(role) && kinds.at(role).is_string();
  return known ? kinds.at(role).get<std::string>() : "mean";
}

}  // namespace onnx_train
