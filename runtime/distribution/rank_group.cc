#include "runtime/distribution/rank_group.h"

#include <algorithm>

namespace onnx_train {

RankGroup::RankGroup(Collectives* ranks, std::vector<int> members, std::unique_ptr<RankGroup> data)
    : ranks_(*ranks),
      members_(std::move(members)),
      rank_(static_cast<int>(std::ranges::find(members_, ranks->rank()) - members_.begin())),
      data_(std::move(data)) {}

void RankGroup::exchange_among(const std::vector<int>& members, const std::string& what,
                               const std::vector<std::span<const std::byte>>& out,
                               const std::vector<std::span<std::byte>>& in) {
  std::vector<int> numbers;
  for (const int rank : members) numbers.push_back(member(rank));
  ranks_.exchange_among(numbers, what, out, in);
}

std::unique_ptr<RankGroup> pipeline_of(Collectives* ranks, int stages) {
  const int stage = ranks->rank() % stages, first = ranks->rank() - stage;
  std::vector<int> pipeline, data;
  for (int s = 0; s < stages; ++s) pipeline.push_back(first + s);
  for (int r = stage; r < ranks->size(); r += stages) data.push_back(r);
  return std::make_unique<RankGroup>(ranks, std::move(pipeline), std::make_unique<RankGroup>(ranks, std::move(data)));
}

}  // namespace onnx_train
