package onnxtrain;

import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * A handle of the library. It is freed once: after close(), or after its owner has become unreachable, and not before
 * the last call and the last buffer that use it have ended. Any thread may call its functions.
 */
final class Handle {
  private final long address;
  private final LongConsumer free;
  private final String what;
  private int uses;
  private boolean closed;

  private Handle(long address, LongConsumer free, String what) {
    this.address = address;
    this.free = free;
    this.what = what;
  }

  /** The handle of `owner`, which says `what` it is in errors. */
  static Handle of(Object owner, long address, LongConsumer free, String what) {
    final Handle handle = new Handle(address, free, what);
    Reclaimer.register(owner, handle::close);
    return handle;
  }

  /** The address, which stays valid until release(). */
  synchronized long acquire() {
    if (closed) throw new IllegalStateException("the " + what + " is closed");
    ++uses;
    return address;
  }

  void release() {
    synchronized (this) {
      --uses;
      if (uses > 0 || !closed) return;
    }
    free.accept(address);
  }

  void close() {
    synchronized (this) {
      if (closed) return;
      closed = true;
      if (uses > 0) return;
    }
    free.accept(address);
  }

  synchronized boolean isClosed() {
    return closed;
  }

  <R> R use(LongFunction<R> call) {
    final long valid = acquire();
    try {
      return call.apply(valid);
    } finally {
      release();
    }
  }
}
