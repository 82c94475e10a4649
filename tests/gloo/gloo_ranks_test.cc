// Ranks over Gloo, which are threads here.
#include "runtime/distribution/gloo/gloo_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/store.h"
#include "runtime/distribution/store_server.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_checks.h"

namespace onnx_train::gloo_ranks_test {
namespace {

using testing::HasSubstr;

Deadline in_seconds(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

int free_port() { return Socket::listen(0).port(); }

std::unique_ptr<Collectives> connect(int rank, int size, int port, int seconds = 20,
                                     const std::function<void(const std::string&)>& on_wait = {}) {
  return connect_over_gloo({.rank = rank, .size = size, .port = port}, in_seconds(seconds), on_wait);
}

// Runs f on each rank in a thread of its own.
void with_ranks(int size, const std::function<void(std::unique_ptr<Collectives>)>& f) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { f(connect(r, size, port)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GlooRanks, EachGetsWhatEachSends) {
  with_ranks(4, [](std::unique_ptr<Collectives> c) { expect_exchanges(c.get()); });
}

// More than a connection holds.
TEST(GlooRanks, MessagesWaitForNoReceiver) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_messages(c.get(), 12'000'000); });
}

TEST(GlooRanks, WhoWaitsForAMessageHearsWhyThereIsNone) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_a_reason_for_no_message(c.get()); });
}

TEST(GlooRanks, ARankThatLeavesSaysWhy) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_a_reason_for_leaving(c.get()); });
}

// A rank whose process is killed is in tests/python/runs/test_ranks.py.
TEST(GlooRanks, ARankThatHasEndedIsNamedByAll) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) {
    if (c->rank() == 2) return;  // though the others go on
    const std::string error = error_of([&] { c->gather("a number", 1); });
    EXPECT_EQ(error, "rank 2 has ended, and does not say why");
    c->leave(error);
  });
}

TEST(GlooRanks, RanksAtDifferentPlacesAreAnError) {
  with_ranks(2, [](std::unique_ptr<Collectives> c) { expect_an_error_at_different_places(c.get()); });
}

TEST(GlooRanks, AMissingRankIsNamed) {
  EXPECT_THAT(error_of([] { connect(0, 3, free_port(), 1); }), HasSubstr("for rank 1, 2, which does not connect"));
}

TEST(GlooRanks, WhoWaitsSaysForWhom) {
  const int port = free_port();
  std::string said;
  std::thread first([&] { connect(0, 2, port, 30, [&](const std::string& text) { said = text; }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  connect(1, 2, port);
  first.join();
  EXPECT_THAT(said, HasSubstr("rank 0 waits for rank 1, which does not connect"));
}

TEST(GlooRanks, TwoProcessesOfOneNumberAreAnError) {
  const int port = free_port();
  const auto wait_in_vain = [&] { return error_of([&] { connect(0, 3, port, 3); }); };
  std::string first_says;
  std::thread first([&] { first_says = wait_in_vain(); });
  std::thread second([&] { error_of([&] { connect(1, 3, port, 2); }); });
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_THAT(error_of([&] { connect(1, 3, port, 1); }), HasSubstr("another process is rank 1 of this run, too"));
  first.join();
  second.join();
  EXPECT_THAT(first_says, HasSubstr("for rank 2, which"));
}

// What knocks at the port and is no rank changes nothing.
TEST(GlooRanks, StrangersAreLeftAlone) {
  const int port = free_port();
  Socket silent;
  std::thread stranger([&] {
    silent = Socket::connect("127.0.0.1", port, in_seconds(20));
    for (const char* text : {"GET / HTTP/1.1\r\n\r\n........................", "short"}) {
      const Socket socket = Socket::connect("127.0.0.1", port, in_seconds(20));
      socket.send(text, strlen(text), in_seconds(1));
    }
  });
  std::unique_ptr<Collectives> leader;
  std::thread first([&] { leader = connect(0, 2, port); });
  stranger.join();
  std::unique_ptr<Collectives> other = connect(1, 2, port);
  first.join();
  EXPECT_THROW(Socket::connect("127.0.0.1", port, in_seconds(0)), Error);  // no rank listens any more
  std::thread says([&] { EXPECT_EQ(leader->gather("a number", 1), (std::vector<uint32_t>{1, 2})); });
  EXPECT_EQ(other->gather("a number", 2), (std::vector<uint32_t>{1, 2}));
  says.join();
  std::thread ends([&] { leader.reset(); });
  other.reset();
  ends.join();
}

// MPI knows where they are.
TEST(GlooRanks, SeveralMachinesNeedAnAddress) {
  const RankPlace place{.rank = 1, .size = 4, .local_size = 2, .address = "", .launcher = "mpirun"};
  EXPECT_THAT(error_of([&] { connect_over_gloo(place, in_seconds(0), {}); }), HasSubstr("set MASTER_ADDR"));
}

// ---- The store through which they find each other

TEST(Store, KeepsWhatIsSet) {
  const StoreServer server(0);
  StoreClient one("127.0.0.1", server.port(), in_seconds(10)), other("127.0.0.1", server.port(), in_seconds(10));
  EXPECT_FALSE(other.has({"a", "b"}));
  one.set("a", "first");
  one.set("b", std::string(100'000, 'b'));
  while (!other.has({"a", "b"})) {
  }
  EXPECT_EQ(other.get("a"), "first");
  EXPECT_EQ(other.get("b"), std::string(100'000, 'b'));
  EXPECT_EQ(other.get("none"), "");
  EXPECT_EQ(one.add("count", 2), 2);
  EXPECT_EQ(other.add("count", -5), -3);
}

TEST(Store, EndsAConnectionThatIsNone) {
  const StoreServer server(0);
  const Socket stranger = Socket::connect("127.0.0.1", server.port(), in_seconds(10));
  stranger.send("GET /", 5, in_seconds(1));
  char byte = 0;
  EXPECT_THAT(error_of([&] { stranger.receive(&byte, 1, in_seconds(10)); }), HasSubstr("has closed the connection"));
}

}  // namespace
}  // namespace onnx_train::gloo_ranks_test
