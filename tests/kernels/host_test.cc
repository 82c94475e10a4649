#include "kernels/host.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "kernels/device.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::host_test {
namespace {

namespace fs = std::filesystem;

// A tree of the files that the kernel shows.
class System {
 public:
  explicit System(const std::string& name) : root_(testing::TempDir() + "/system_" + name) { fs::remove_all(root_); }
  ~System() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  size_t available() const { return available_host_memory(root_); }
  int cores() const { return cores_of_quota(root_); }

 private:
  std::string root_;
};

std::string error_of_finding(const std::string& device) {
  try {
    Device::find(device);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kDevice) << device;
    return error.what();
  }
  return "";
}

TEST(Device, ANumberFollowsAColon) {
  EXPECT_EQ(&Device::find("cpu:0"), &Device::cpu());
  EXPECT_EQ(error_of_finding("cpu:1"), "there is no device 'cpu:1': this machine has 1, cpu:0");
  for (const char* wrong : {"cpu:", "cpu:x", "cpu:-1", "cpu:0x", "cpu:99999999999", "cpu: 0"}) {
    EXPECT_EQ(error_of_finding(wrong),
              "there is no device '" + std::string(wrong) + "': a number follows the colon, as in cpu:0");
  }
  EXPECT_NE(error_of_finding("nothing:0").find("there is no device 'nothing' in this installation"), std::string::npos);
  EXPECT_NE(error_of_finding("../cpu:0").find("there is no device '../cpu'"), std::string::npos);
}

TEST(AvailableMemory, IsWhatTheMachineHas) {
  System system("machine");
  EXPECT_EQ(system.available(), SIZE_MAX);
  system.write("/proc/meminfo", "MemTotal:  8000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n");
  EXPECT_EQ(system.available(), 5000u * 1024);
}

TEST(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  System system("groups");
  system.write("/proc/meminfo", "MemAvailable: 5000 kB\n");
  system.write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string mount = "/sys/fs/cgroup";
  system.write(mount + "/outer/inner/memory.max", "max\n");
  system.write(mount + "/outer/inner/memory.current", "100\n");
  EXPECT_EQ(system.available(), 5000u * 1024);
  system.write(mount + "/outer/memory.max", "100000\n");
  system.write(mount + "/outer/memory.current", "70000\n");
  EXPECT_EQ(system.available(), 30000u);
  system.write(mount + "/outer/memory.stat", "anon 1000\ninactive_file 5000\n");
  EXPECT_EQ(system.available(), 35000u);
  system.write(mount + "/outer/memory.current", "200000\n");
  EXPECT_EQ(system.available(), 0u);
}

TEST(AvailableMemory, ReadsTheOlderGroupsToo) {
  System system("older");
  system.write("/proc/self/cgroup", "5:cpu:/x\n4:memory:/box\n");
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n");
  system.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
  EXPECT_EQ(system.available(), 5000u);
}

TEST(CoresOfQuota, AreThoseOfTheTightestGroupRoundedUp) {
  System system("quota");
  EXPECT_EQ(system.cores(), 0);
  system.write("/proc/self/cgroup", "0::/outer/inner\n");
  const std::string mount = "/sys/fs/cgroup";
  system.write(mount + "/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(system.cores(), 0);
  system.write(mount + "/outer/cpu.max", "250000 100000\n");
  EXPECT_EQ(system.cores(), 3);
  system.write(mount + "/outer/inner/cpu.max", "50000 100000\n");
  EXPECT_EQ(system.cores(), 1);
}

TEST(CoresOfQuota, InAContainerAreInTheRootOfTheMount) {
  System system("container");
  system.write("/proc/self/cgroup", "0::/\n");
  system.write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(system.cores(), 2);
}

TEST(CoresOfQuota, ReadTheOlderGroupsToo) {
  System system("older_quota");
  system.write("/proc/self/cgroup", "6:cpuset:/cpus\n5:cpu,cpuacct:/x\n0::/\n");
  const std::string mount = "/sys/fs/cgroup/cpu";
  system.write(mount + "/x/cpu.cfs_quota_us", "-1\n");
  system.write(mount + "/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(system.cores(), 0);
  system.write(mount + "/x/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(system.cores(), 2);
}

TEST(AvailableMemory, WhatIsNotThereIsNotAllocated) {
  const size_t available = Device::cpu().available_bytes();
  if (available > SIZE_MAX / 4) GTEST_SKIP() << "this system does not say how much memory is available";
  try {
    Device::cpu().free(Device::cpu().allocate(2 * available));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("smaller batch"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace onnx_train::host_test
