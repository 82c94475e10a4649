package onnxtrain;

/** Where the tensors of a session are, in the numbers of DLPack. */
public final class Device {
  /** DLDeviceType: 1 is the host, 2 is CUDA. */
  public final int type;

  public final int id;
  /** A cudaStream_t on CUDA; 0 where the device has none. */
  public final long stream;

  Device(int type, int id, long stream) {
    this.type = type;
    this.id = id;
    this.stream = stream;
  }
}
