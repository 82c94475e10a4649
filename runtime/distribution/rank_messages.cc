#include "runtime/distribution/rank_messages.h"

#include <algorithm>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {

bool RankMessage::has_name() const {
  return std::find(contents.begin(), contents.end(), std::byte{0}) != contents.end();
}

RankHeader header_of(const std::string& what, uint64_t bytes) {
  return {RankHeader::kExchange, text_hash(what), bytes};
}

std::vector<std::byte> message_of(const std::string& name, std::span<const std::byte> data) {
  const RankHeader header{RankHeader::kMessage, text_hash(name), name.size() + 1 + data.size()};
  std::vector<std::byte> message(sizeof(header) + header.bytes);
  std::memcpy(message.data(), &header, sizeof(header));
  std::memcpy(message.data() + sizeof(header), name.c_str(), name.size() + 1);
  if (!data.empty()) std::memcpy(message.data() + sizeof(header) + name.size() + 1, data.data(), data.size());
  return message;
}

std::string at_another_place(size_t other, int rank, const std::string& what) {
  return concat("rank ", other, " is at another place than rank ", rank, what.empty() ? "" : ", which is at ", what,
                ": give all ranks the same command and the same files");
}

std::string of_another_size(int from, size_t sent, const std::string& name, int rank, size_t wanted) {
  return concat("rank ", from, " sends ", sent, " bytes of ", name, ", and rank ", rank, " wants ", wanted,
                ": give all ranks the same command and the same files");
}

std::string without_a_name(size_t from) { return concat("rank ", from, " sends a message without a name"); }

std::string is_gone(size_t rank, const std::string& host) {
  return concat("rank ", rank, " (", host, ") is gone: its process was killed, or its machine cannot be reached");
}

std::string heard(size_t rank, bool forwards, const std::string& reason) {
  if (reason.empty()) return concat("rank ", rank, " has ended, and does not say why");
  return forwards ? reason : concat("rank ", rank, " has ended: ", reason);
}

}  // namespace onnx_train
