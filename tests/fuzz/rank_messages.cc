#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "runtime/distribution/connected_ranks.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

// The first byte says what this rank is at: it waits for a message, exchanges, or asks whether the other one is there.
void rank_messages(Input input) {
  if (input.empty()) return;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  const Socket other(ends[0]);
  std::vector<Socket> peers(2);
  peers[1] = Socket(ends[1]);
  const Input sent = input.subspan(1);
  if (!sent.empty() && write(other.fd(), sent.data(), sent.size()) != static_cast<ssize_t>(sent.size())) std::abort();
  shutdown(other.fd(), SHUT_WR);
  const auto ranks = connected_ranks(0, std::move(peers));
  std::array<std::byte, 8> in{}, out{}, own{};
  const auto exchange = [&] { ranks->exchange("sum", {out, out}, {own, in}); };
  const auto receive = [&] { ranks->receive("activation", 1, in); };
  try_to([&] {
    switch (input[0] % 3) {
      case 0: receive(); break;
      case 1: exchange(); break;
      default: ranks->check();
    }
    receive();
    exchange();
  });
  ranks->leave("the end");
}

}  // namespace onnx_train::fuzz
