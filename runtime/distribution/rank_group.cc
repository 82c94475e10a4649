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

std::unique_ptr<RankGroup> group_of(Collectives* ranks, int size) {
  const int number = ranks->rank() % size, first = ranks->rank() - number;
  std::vector<int> group, data;
  for (int i = 0; i < size; ++i) group.push_back(first + i);
  for (int r = number; r < ranks->size(); r += size) data.push_back(r);
  return std::make_unique<RankGroup>(ranks, std::move(group), std::make_unique<RankGroup>(ranks, std::move(data)));
}

}  // namespace onnx_train
