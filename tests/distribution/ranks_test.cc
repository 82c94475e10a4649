// Which rank a process is, and what connects it to the others.
#include "runtime/distribution/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/modules.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/socket.h"
#include "tests/support/error_of.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train::ranks_test {
namespace {

using testing::HasSubstr;

Deadline in_seconds(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

// ---- The transport. Beside this program there are no modules.

TEST(Ranks, WithoutTheModuleForMpiTheyTakeGloo) {
  const RankPlace place{.rank = 0, .size = 2, .launcher = "mpirun"};
  EXPECT_THAT(error_of([&] { connect_ranks(place, in_seconds(1)); }),
              HasSubstr("the transport 'gloo' is not in this installation: build it where CMake finds Gloo"));
}

TEST(Ranks, MpiThatCannotBeSaysWhatToDo) {
  RankPlace place{.rank = 0, .size = 2, .launcher = "mpirun", .transport = Transport::kMpi};
  EXPECT_THAT(error_of([&] { connect_ranks(place, in_seconds(0)); }),
              HasSubstr("is not in this installation: build it"));
  place.launcher = "torchrun";
  EXPECT_EQ(error_of([&] { connect_ranks(place, in_seconds(0)); }),
            "the transport 'mpi' is for processes that mpirun starts, and torchrun has started these: start them with "
            "mpirun, or take gloo");
}

TEST(Modules, OneThatCannotBeLoadedNamesWhatIsMissing) {
  try {
    module_function("nosuch", "onnx_train_nosuch", "the device 'nosuch'");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceLibrary);
    EXPECT_THAT(error.what(), testing::StartsWith("the device 'nosuch': "));
    EXPECT_THAT(error.what(), HasSubstr("LD_LIBRARY_PATH"));
  }
}

TEST(Socket, ARankThatDoesNotListenIsMissing) {
  const int port = Socket::listen(0).port();  // free again
  try {
    Socket::connect("127.0.0.1", port, in_seconds(0));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRankMissing);
    EXPECT_THAT(error.what(), HasSubstr(concat("cannot connect to 127.0.0.1:", port, ": ")));
  }
}

// ---- The environment

class RankPlaceTest : public testing::Test {
 protected:
  // The last one first: one that was set twice is then as it was.
  void TearDown() override {
    while (!set_.empty()) set_.pop_back();
  }

  void set(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) set_.push_back(std::make_unique<ScopedVariable>(name, value));
  }

 private:
  std::vector<std::unique_ptr<ScopedVariable>> set_;
};

TEST_F(RankPlaceTest, OneProcessHasNone) {
  EXPECT_FALSE(rank_place_of_environment());
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_FALSE(rank_place_of_environment());
}

TEST_F(RankPlaceTest, Torchrun) {
  set({{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "node1"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_size, 4);
  EXPECT_EQ(place->address, "node1");
  EXPECT_EQ(place->port, 29500);
  EXPECT_TRUE(place->has_store);
  EXPECT_THAT(place->run, HasSubstr("2"));
}

TEST_F(RankPlaceTest, MpirunOnOneMachine) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
       {"PMIX_NAMESPACE", "prterun-host-7"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->address, "127.0.0.1");
  EXPECT_GE(place->port, 20000);
  EXPECT_FALSE(place->has_store);
}

TEST_F(RankPlaceTest, Srun) {
  set({{"SLURM_PROCID", "3"},
       {"SLURM_STEP_NUM_TASKS", "4"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_STEP_NODELIST", "gpu[03-04,17]"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->address, "gpu03");
}

TEST_F(RankPlaceTest, NumbersThatAreNone) {
  set({{"RANK", "two"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(error_of([] { rank_place_of_environment(); }), HasSubstr("RANK=two"));
  set({{"RANK", "2"}});
  EXPECT_THAT(error_of([] { rank_place_of_environment(); }), HasSubstr("a number from 0 to 1"));
}

TEST_F(RankPlaceTest, TheTransport) {
  set({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(rank_place_of_environment()->transport, Transport::kAuto);
  set({{"ONNX_TRAIN_TRANSPORT", "mpi"}});
  EXPECT_EQ(rank_place_of_environment()->transport, Transport::kMpi);
  set({{"ONNX_TRAIN_TRANSPORT", "ftp"}});
  EXPECT_EQ(error_of([] { rank_place_of_environment(); }),
            "ONNX_TRAIN_TRANSPORT is 'ftp'; it must be auto, gloo or mpi");
}

}  // namespace
}  // namespace onnx_train::ranks_test
