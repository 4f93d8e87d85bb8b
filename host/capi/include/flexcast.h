/* SPDX-License-Identifier: Apache-2.0
 *
 * Flexcast: non-blocking Broadcast and Allgather over hardware multicast, with the datapath on the DPA of the
 * network card; barriers, reductions, Alltoall, Gather and Scatter by this process, between pairs of ranks.
 *
 * Written by `cargo xtask header` from host/capi/src; examples/c/allgather.c is a program.
 *
 * - Every function that can fail returns a flexcast_status; flexcast_last_error() gives the value, the limit and the
 *   next step.
 * - Handles (flexcast_endpoint *, ...) are numbers and never followed: one that was freed, or is another object's, is
 *   refused.
 * - Every function may be called from every thread. Operations of a communicator are posted in the same order on all
 *   ranks: threads that post to one communicator agree on theirs.
 * - Every other pointer is NULL, which is refused where nothing else is said, or points at what its type says. A
 *   buffer of no bytes may be NULL.
 * - Nothing waits for ever. Without a progress thread (`progress_thread` in flexcast_config) nothing happens by
 *   itself: flexcast_test(), flexcast_wait() and flexcast_progress() move operations on; what the card does
 *   (receiving, copying, sending) needs no call.
 * - Structures begin with their size, or are given with it: a program goes on working with libraries that know more
 *   fields.
 * - A request of flexcast_post(), and of flexcast_allgather() and the others, is freed by the flexcast_wait() or
 *   flexcast_test() that reports its end. One of flexcast_prepare() stays until flexcast_request_free().
 * - After fork() the library is the parent's: the child gets FLEXCAST_ERROR_FORKED from every function that returns
 *   a status, at once, and can neither use nor disturb what the parent has. A process that forks before its first
 *   endpoint or bootstrap may use it in the child.
 * - Free in the order requests, communicators, bootstrap and endpoint; another order is refused where it matters.
 */

#ifndef FLEXCAST_H
#define FLEXCAST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** As the send buffer: the own bytes are in their place in the receive buffer already. */
#define FLEXCAST_IN_PLACE ((const void *)-1)


/**
 * Version of this interface. A library of a version serves programs of all versions from 1 to its own: functions,
 * codes and fields are added, and structures are distinguished by their size. A change that programs do not survive
 * would end in another name of the shared library than libflexcast.so.1.
 */
#define FLEXCAST_ABI_VERSION 1

/**
 * Nothing.
 */
#define FLEXCAST_LOG_OFF 0

/**
 * What cannot go on.
 */
#define FLEXCAST_LOG_ERROR 1

/**
 * What goes on otherwise than was asked for; the default.
 */
#define FLEXCAST_LOG_WARN 2

/**
 * What was chosen, once for each object.
 */
#define FLEXCAST_LOG_INFO 3

/**
 * Each operation.
 */
#define FLEXCAST_LOG_DEBUG 4

/**
 * Each message.
 */
#define FLEXCAST_LOG_TRACE 5

/**
 * Multicast datagrams, staged in DPA memory and copied to the user's buffer by the card.
 */
#define FLEXCAST_TRANSPORT_UD 0

/**
 * RDMA Writes to each rank, straight into the user's buffer.
 */
#define FLEXCAST_TRANSPORT_UC_UNICAST 1

/**
 * The protocol runs on the host: flexcast_test(), flexcast_wait() and flexcast_progress() move it on.
 */
#define FLEXCAST_CONTROL_HOST 0

/**
 * The protocol runs on the card, by a DPA thread of its own: from posting to completion the host has nothing to do,
 * unless something is lost. Not with FLEXCAST_TRANSPORT_UC_UNICAST.
 */
#define FLEXCAST_CONTROL_DEVICE 1

/**
 * Service processes on the card's Arm cores carry out Alltoall, Alltoallv, Allgather, Allgatherv, and Broadcast where
 * they have staging memory. The settings `service.endpoints`, `service.secret` and so on say where they are and how
 * they are used. Where a rank has none, all ranks go by FLEXCAST_CONTROL_HOST: flexcast_comm_control() says so. Over
 * RDMA cards alone; with the datapath "dpa" Broadcast, Allgather and Allgatherv are the DPA's.
 */
#define FLEXCAST_CONTROL_SERVICE 2

/**
 * For each operation what the library expects to be fastest: multicast, the messages of the barrier, or writes over
 * reliable connections.
 */
#define FLEXCAST_ALGORITHM_AUTOMATIC 0

/**
 * Multicast; what is short enough rides on the messages of the barrier.
 */
#define FLEXCAST_ALGORITHM_MULTICAST 1

/**
 * Allgathers around a ring of reliable connections, in segments.
 */
#define FLEXCAST_ALGORITHM_RING 2

/**
 * Allgathers by writes to each rank directly.
 */
#define FLEXCAST_ALGORITHM_LINEAR 3

/**
 * Allgathers by recursive doubling over reliable connections.
 */
#define FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING 4

/**
 * Allgathers by the algorithm of Bruck et al. over reliable connections.
 */
#define FLEXCAST_ALGORITHM_BRUCK 5

/**
 * For `progress_cpu`: any.
 */
#define FLEXCAST_CPU_ANY UINT32_MAX

/**
 * Bytes for settings by name in flexcast_config.
 */
#define FLEXCAST_SETTINGS_BYTES 4096

/**
 * Colour of a rank that is in none of the communicators that flexcast_comm_split() makes.
 */
#define FLEXCAST_UNDEFINED -1

/**
 * Element `int8_t`; this and the other types are those of C, on the computer that the library was built for.
 */
#define FLEXCAST_INT8 1

/**
 * Element `uint8_t`.
 */
#define FLEXCAST_UINT8 2

/**
 * Element `int16_t`.
 */
#define FLEXCAST_INT16 3

/**
 * Element `uint16_t`.
 */
#define FLEXCAST_UINT16 4

/**
 * Element `int32_t`.
 */
#define FLEXCAST_INT32 5

/**
 * Element `uint32_t`.
 */
#define FLEXCAST_UINT32 6

/**
 * Element `int64_t`.
 */
#define FLEXCAST_INT64 7

/**
 * Element `uint64_t`.
 */
#define FLEXCAST_UINT64 8

/**
 * IEEE 754 binary16.
 */
#define FLEXCAST_FLOAT16 9

/**
 * The upper half of a binary32.
 */
#define FLEXCAST_BFLOAT16 10

/**
 * `float`.
 */
#define FLEXCAST_FLOAT 11

/**
 * `double`.
 */
#define FLEXCAST_DOUBLE 12

/**
 * `float _Complex`.
 */
#define FLEXCAST_FLOAT_COMPLEX 13

/**
 * `double _Complex`.
 */
#define FLEXCAST_DOUBLE_COMPLEX 14

/**
 * `_Bool`.
 */
#define FLEXCAST_BOOL 15

/**
 * Eight bits without a meaning.
 */
#define FLEXCAST_BYTE 16

/**
 * `struct { float value; int index; }`.
 */
#define FLEXCAST_FLOAT_INT 17

/**
 * `struct { double value; int index; }`.
 */
#define FLEXCAST_DOUBLE_INT 18

/**
 * `struct { long value; int index; }`.
 */
#define FLEXCAST_LONG_INT 19

/**
 * `struct { int value; int index; }`.
 */
#define FLEXCAST_2INT 20

/**
 * `struct { short value; int index; }`.
 */
#define FLEXCAST_SHORT_INT 21

/**
 * Sum, for integers, which wrap, floating-point and complex numbers.
 */
#define FLEXCAST_SUM 1

/**
 * Product, for the same types as FLEXCAST_SUM.
 */
#define FLEXCAST_PRODUCT 2

/**
 * Least value, for integers and floating-point numbers.
 */
#define FLEXCAST_MIN 3

/**
 * Largest value, for the same types as FLEXCAST_MIN.
 */
#define FLEXCAST_MAX 4

/**
 * Logical and, for integers and truth values.
 */
#define FLEXCAST_LOGICAL_AND 5

/**
 * Logical or, for the same types.
 */
#define FLEXCAST_LOGICAL_OR 6

/**
 * Logical exclusive or, for the same types.
 */
#define FLEXCAST_LOGICAL_XOR 7

/**
 * Bitwise and, for integers and bytes.
 */
#define FLEXCAST_BIT_AND 8

/**
 * Bitwise or, for integers and bytes.
 */
#define FLEXCAST_BIT_OR 9

/**
 * Bitwise exclusive or, for integers and bytes.
 */
#define FLEXCAST_BIT_XOR 10

/**
 * For pairs of value and index: the pair of the least value, and of those the least index.
 */
#define FLEXCAST_MINLOC 11

/**
 * The pair of the largest value, and of those the least index.
 */
#define FLEXCAST_MAXLOC 12

/**
 * Ends on no rank before all ranks have posted it.
 */
#define FLEXCAST_OPERATION_BARRIER 1

/**
 * `count` bytes of `receive` from rank `root` to all ranks: read on the root, written elsewhere.
 */
#define FLEXCAST_OPERATION_BROADCAST 2

/**
 * `count` bytes of `send` from every rank to every rank: `receive` has size times as many, in the order of ranks.
 */
#define FLEXCAST_OPERATION_ALLGATHER 3

/**
 * `receive_counts[r]` bytes of `send` from every rank r to every rank, where they are received at
 * `receive_displacements[r]`. Both lists are alike on all ranks; `count` is not used.
 */
#define FLEXCAST_OPERATION_ALLGATHERV 4

/**
 * The reduction of `count` elements of every rank, element by element, to all ranks.
 */
#define FLEXCAST_OPERATION_ALLREDUCE 5

/**
 * The same to rank `root` alone; elsewhere `receive` is not used.
 */
#define FLEXCAST_OPERATION_REDUCE 6

/**
 * The reduction of size times `count` elements of every rank, of which each rank gets `count`: the r-th part goes to
 * rank r. In place the contribution is in `receive`, whose beginning gets the result.
 */
#define FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK 7

/**
 * The same with `receive_counts[r]` elements for rank r, alike on all ranks.
 */
#define FLEXCAST_OPERATION_REDUCE_SCATTER 8

/**
 * `count` bytes of every rank to every rank: the r-th part of `send` to rank r, where it becomes the part of this rank
 * in `receive`. Both have size times `count` bytes. In place `receive` has what is sent, too.
 */
#define FLEXCAST_OPERATION_ALLTOALL 9

/**
 * `send_counts[r]` bytes at `send_displacements[r]` to rank r, and `receive_counts[r]` bytes of rank r to
 * `receive_displacements[r]`. The two ranks of a block give one length. In place the lists of `send` are not used.
 */
#define FLEXCAST_OPERATION_ALLTOALLV 10

/**
 * `count` bytes of `send` of every rank to rank `root`, in the order of ranks: its `receive` has size times as many.
 * Elsewhere `receive` is not used. In place on the root alone.
 */
#define FLEXCAST_OPERATION_GATHER 11

/**
 * `count` bytes of this rank, and on the root `receive_counts[r]` bytes of rank r to `receive_displacements[r]`.
 */
#define FLEXCAST_OPERATION_GATHERV 12

/**
 * The r-th part of the `send` of rank `root`, of `count` bytes, to `receive` of rank r. Elsewhere `send` is not used.
 * In place on the root alone: its block stays in `send`.
 */
#define FLEXCAST_OPERATION_SCATTER 13

/**
 * `count` bytes for this rank, and on the root `send_counts[r]` bytes at `send_displacements[r]` for rank r.
 */
#define FLEXCAST_OPERATION_SCATTERV 14

/**
 * FLEXCAST_OPERATION_ALLREDUCE for contributions of which much is zero: blocks of `block_bytes` that are zero are
 * neither sent nor summed, and nobody has to say where they are. A block is zero if all of its bits are, so that -0.0
 * and NaN travel. `reduction` is FLEXCAST_SUM, _MIN, _MAX, _LOGICAL_OR, _LOGICAL_XOR, _BIT_OR or _BIT_XOR; for minimum
 * and maximum a block that is zero is one that the rank does not have. Over a network interface, sums whose arrays are
 * short or have had few zeros may go as those of FLEXCAST_OPERATION_ALLREDUCE, where that is expected to be faster:
 * there -0.0 of one rank and 0.0 of the others are 0.0. `send` may lie in memory that can only be read, and neither
 * pointer need be aligned to its elements.
 *
 * With `reproducible` in flexcast_config blocks are added in the order of ranks; otherwise in the order in which they
 * come, so that sums of floating-point numbers of more than two ranks may differ from call to call in their last bits.
 * After a failure `receive` is part old and part new.
 */
#define FLEXCAST_OPERATION_SPARSE_ALLREDUCE 15

/**
 * Flag: in place, as with FLEXCAST_IN_PLACE for `send` (of a Scatter for `receive`), which is not used then.
 */
#define FLEXCAST_FLAG_IN_PLACE 1

/**
 * Flag: who posts waits at once, by flexcast_wait() or flexcast_wait_for(). The progress thread is not woken for it,
 * and takes it on milliseconds late if nobody waits.
 */
#define FLEXCAST_FLAG_AWAITED 2

/**
 * Bytes of a message, or their number, do not fit the memory of this rank.
 */
#define FLEXCAST_CODE_LOCAL_LENGTH 1

/**
 * The queue pair of this rank cannot carry out the request.
 */
#define FLEXCAST_CODE_LOCAL_QUEUE_PAIR 2

/**
 * Memory of this rank is not registered for the request.
 */
#define FLEXCAST_CODE_LOCAL_PROTECTION 4

/**
 * The queue pair had failed before.
 */
#define FLEXCAST_CODE_FLUSHED 5

/**
 * A memory window cannot be bound.
 */
#define FLEXCAST_CODE_WINDOW_BIND 6

/**
 * The peer's card gave an answer that cannot be.
 */
#define FLEXCAST_CODE_BAD_RESPONSE 7

/**
 * A write of the peer does not fit the memory of this rank.
 */
#define FLEXCAST_CODE_LOCAL_ACCESS 8

/**
 * The peer's card refuses the request.
 */
#define FLEXCAST_CODE_REMOTE_INVALID_REQUEST 9

/**
 * The peer's memory does not allow the access.
 */
#define FLEXCAST_CODE_REMOTE_ACCESS 10

/**
 * The peer's card cannot carry out the request.
 */
#define FLEXCAST_CODE_REMOTE_OPERATION 11

/**
 * The peer's card did not answer: it is gone, or the network is.
 */
#define FLEXCAST_CODE_RETRIES_EXCEEDED 12

/**
 * The peer had no receive posted for too long.
 */
#define FLEXCAST_CODE_RECEIVER_NOT_READY 13

/**
 * The peer aborted the request.
 */
#define FLEXCAST_CODE_REMOTE_ABORTED 16

/**
 * The card has failed.
 */
#define FLEXCAST_CODE_FATAL 19

/**
 * The peer's card did not answer in time.
 */
#define FLEXCAST_CODE_RESPONSE_TIMEOUT 20

/**
 * The completion has another status; the log has its number.
 */
#define FLEXCAST_CODE_COMPLETION 21

/**
 * The system gave an error that has no code of its own; the log has its number.
 */
#define FLEXCAST_CODE_SYSTEM 4096

/**
 * The system does not permit it: `EPERM`.
 */
#define FLEXCAST_CODE_NOT_PERMITTED 4097

/**
 * Input or output error: `EIO`.
 */
#define FLEXCAST_CODE_INPUT_OUTPUT 4101

/**
 * The operating system has no memory left: `ENOMEM`.
 */
#define FLEXCAST_CODE_OUT_OF_MEMORY 4108

/**
 * Permission denied: `EACCES`.
 */
#define FLEXCAST_CODE_ACCESS_DENIED 4109

/**
 * Invalid argument: `EINVAL`.
 */
#define FLEXCAST_CODE_INVALID_ARGUMENT 4118

/**
 * Too many open files in the system: `ENFILE`.
 */
#define FLEXCAST_CODE_SYSTEM_FILES 4119

/**
 * Too many open files in the process: `EMFILE`.
 */
#define FLEXCAST_CODE_PROCESS_FILES 4120

/**
 * Broken pipe: `EPIPE`.
 */
#define FLEXCAST_CODE_BROKEN_PIPE 4128

/**
 * Address in use: `EADDRINUSE`.
 */
#define FLEXCAST_CODE_ADDRESS_IN_USE 4194

/**
 * Address not available: `EADDRNOTAVAIL`.
 */
#define FLEXCAST_CODE_ADDRESS_NOT_AVAILABLE 4195

/**
 * Network down: `ENETDOWN`.
 */
#define FLEXCAST_CODE_NETWORK_DOWN 4196

/**
 * Network unreachable: `ENETUNREACH`.
 */
#define FLEXCAST_CODE_NETWORK_UNREACHABLE 4197

/**
 * Connection dropped by the network: `ENETRESET`.
 */
#define FLEXCAST_CODE_NETWORK_RESET 4198

/**
 * Connection aborted: `ECONNABORTED`.
 */
#define FLEXCAST_CODE_CONNECTION_ABORTED 4199

/**
 * `ECONNRESET`, or the peer has closed the connection.
 */
#define FLEXCAST_CODE_CONNECTION_RESET 4200

/**
 * The operating system has no buffers left: `ENOBUFS`.
 */
#define FLEXCAST_CODE_NO_BUFFERS 4201

/**
 * Not connected: `ENOTCONN`.
 */
#define FLEXCAST_CODE_NOT_CONNECTED 4203

/**
 * Timed out: `ETIMEDOUT`.
 */
#define FLEXCAST_CODE_TIMED_OUT 4206

/**
 * Connection refused: `ECONNREFUSED`.
 */
#define FLEXCAST_CODE_CONNECTION_REFUSED 4207

/**
 * Host down: `EHOSTDOWN`.
 */
#define FLEXCAST_CODE_HOST_DOWN 4208

/**
 * Host unreachable: `EHOSTUNREACH`.
 */
#define FLEXCAST_CODE_HOST_UNREACHABLE 4209

/**
 * The operation could not be begun; its error on the failed rank says why.
 */
#define FLEXCAST_CODE_NOT_STARTED 8193

/**
 * The peer said what no rank of this release says.
 */
#define FLEXCAST_CODE_PROTOCOL_VIOLATION 8194

/**
 * A receive worker or a send worker of the card did not answer.
 */
#define FLEXCAST_CODE_WORKER_SILENT 8195

/**
 * The progress thread of the card did not answer.
 */
#define FLEXCAST_CODE_PROGRESS_THREAD_SILENT 8196

/**
 * The process on the card has died.
 */
#define FLEXCAST_CODE_PROCESS_DIED 8197

/**
 * The card has not copied the own block.
 */
#define FLEXCAST_CODE_COPY 8198

/**
 * A queue pair for datagrams has failed; the log has the status of the work completion.
 */
#define FLEXCAST_CODE_DATAGRAMS 8199

/**
 * The service process is gone, or refuses.
 */
#define FLEXCAST_CODE_SERVICE_PROCESS 8200

/**
 * The program is gone, as its service process says.
 */
#define FLEXCAST_CODE_PROGRAM 8201

/**
 * The progress thread reported a cause that is not known.
 */
#define FLEXCAST_CODE_UNKNOWN_CAUSE 8202

/**
 * At the other end of the connection there is not the rank that was meant; the log says what came.
 * Firmware never finds that, nor is it notified of it.
 */
#define FLEXCAST_CODE_WRONG_PEER 8203

/**
 * Receive worker: an error completion on its receive queue.
 */
#define FLEXCAST_CODE_RECEIVE_QUEUE 8451

/**
 * Receive worker: a copy to the user's buffer failed.
 */
#define FLEXCAST_CODE_RECEIVE_COPY 8452

/**
 * Receive worker: the operation does not fit its context.
 */
#define FLEXCAST_CODE_RECEIVE_OPERATION 8453

/**
 * Receive worker: a completion of a kind that its transport does not produce.
 */
#define FLEXCAST_CODE_RECEIVE_OPCODE 8454

/**
 * Receive worker: an error completion on the control queue of its thread.
 */
#define FLEXCAST_CODE_RECEIVE_CONTROL 8455

/**
 * Send worker: a send failed.
 */
#define FLEXCAST_CODE_SEND_QUEUE 8708

/**
 * Send worker: the operation does not fit its context.
 */
#define FLEXCAST_CODE_SEND_OPERATION 8709

/**
 * Send worker: an error completion on its control queue.
 */
#define FLEXCAST_CODE_SEND_CONTROL 8710

/**
 * Send worker: a completion of a kind that a send does not produce.
 */
#define FLEXCAST_CODE_SEND_OPCODE 8711

/**
 * Progress thread: an error completion on its control queue.
 */
#define FLEXCAST_CODE_PROGRESS_CONTROL 8961

/**
 * Progress thread: a command that makes no sense.
 */
#define FLEXCAST_CODE_PROGRESS_COMMAND 8962

/**
 * FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. A signal of the barrier: it has not called the operation,
 * or waits itself.
 */
#define FLEXCAST_WAITED_FOR_BARRIER 1

/**
 * FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The end of its multicast, after which the next rank
 * begins.
 */
#define FLEXCAST_WAITED_FOR_ACTIVATION 2

/**
 * FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The end of its own multicast.
 */
#define FLEXCAST_WAITED_FOR_OWN_SEND 3

/**
 * FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. A block, or the acknowledgement of one.
 */
#define FLEXCAST_WAITED_FOR_BLOCK 4

/**
 * FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The message that ends the operation.
 */
#define FLEXCAST_WAITED_FOR_FINAL 5

/**
 * A time of something that has not happened.
 */
#define FLEXCAST_NEVER UINT64_MAX

/**
 * No failure.
 */
#define FLEXCAST_CAUSE_NONE 0

/**
 * The failed rank was waited for in vain; the code says for what: FLEXCAST_WAITED_FOR_....
 */
#define FLEXCAST_CAUSE_SILENT 1

/**
 * The failed rank cancelled.
 */
#define FLEXCAST_CAUSE_CANCELLED 2

/**
 * The failed rank called another operation than the detecting rank, or with other arguments; flexcast_last_error()
 * names both calls.
 */
#define FLEXCAST_CAUSE_DISAGREES 3

/**
 * The failed rank's worker on the card failed; the code says how: FLEXCAST_CODE_....
 */
#define FLEXCAST_CAUSE_DEVICE 4

/**
 * The connection between them broke; the code says how: FLEXCAST_CODE_....
 */
#define FLEXCAST_CAUSE_CONNECTION 5

/**
 * An aggregator that is no rank failed the detecting rank; the code is its number among the setting
 * `sparse.aggregators`, from 0.
 */
#define FLEXCAST_CAUSE_AGGREGATOR 6

/**
 * The failed rank contributed a number beyond the setting `sparse.fixed_point`, infinite or not a number;
 * FLEXCAST_ERROR_CONTRIBUTION and flexcast_last_error() there say which.
 */
#define FLEXCAST_CAUSE_CONTRIBUTION 7

/**
 * What every function returns. The text that names value, limit and next step: flexcast_last_error().
 */
typedef enum {
  /**
   * All went well.
   */
  FLEXCAST_OK = 0,
  /**
   * A pointer is NULL that must not be.
   */
  FLEXCAST_ERROR_NULL = 1,
  /**
   * A handle that was freed, never made, or is one of something else.
   */
  FLEXCAST_ERROR_HANDLE = 2,
  /**
   * Of version 1: a handle that another thread has made. Handles are the process's now, and no function returns it.
   */
  FLEXCAST_ERROR_THREAD = 3,
  /**
   * The object is in use: by an operation under way, by communicators, or by the call that this one was made from.
   */
  FLEXCAST_ERROR_BUSY = 4,
  /**
   * A structure has a size that this library does not know.
   */
  FLEXCAST_ERROR_SIZE = 5,
  /**
   * No firmware is given, or its file cannot be read.
   */
  FLEXCAST_ERROR_FIRMWARE = 6,
  /**
   * More objects or threads than handles can distinguish.
   */
  FLEXCAST_ERROR_LIMIT = 7,
  /**
   * A mistake of this library; it cannot be used by this thread any more.
   */
  FLEXCAST_ERROR_INTERNAL = 8,
  /**
   * The process was forked from one that uses the library. Endpoints and connections are that one's: in this process
   * every function that returns a status returns this one, and changes nothing, until it calls exec().
   */
  FLEXCAST_ERROR_FORKED = 9,
  /**
   * No error: the library does not carry this operation, and the program uses its own. flexcast_post() says so
   * before anything is posted, and alike on all ranks.
   */
  FLEXCAST_NOT_SUPPORTED = 10,
  /**
   * The card or its library refused something, in a way that has no code of its own (117 to 122).
   */
  FLEXCAST_ERROR_FLEXIO = 100,
  /**
   * Ranks did not come together.
   */
  FLEXCAST_ERROR_EXCHANGE = 101,
  /**
   * A parameter of the configuration outside its range.
   */
  FLEXCAST_ERROR_CONFIG = 102,
  /**
   * The card has not enough of something.
   */
  FLEXCAST_ERROR_BUDGET = 103,
  /**
   * The firmware is of another version.
   */
  FLEXCAST_ERROR_BRING_UP = 104,
  /**
   * The firmware refused a context.
   */
  FLEXCAST_ERROR_CONTEXT = 105,
  /**
   * No such rank, or too many of them.
   */
  FLEXCAST_ERROR_RANK = 106,
  /**
   * What another rank announced of itself does not fit.
   */
  FLEXCAST_ERROR_PEER = 107,
  /**
   * A buffer has not the length that the operation needs.
   */
  FLEXCAST_ERROR_BUFFER_LENGTH = 108,
  /**
   * More chunks than sequence numbers.
   */
  FLEXCAST_ERROR_TOO_MANY_CHUNKS = 109,
  /**
   * An argument that does not fit.
   */
  FLEXCAST_ERROR_ARGUMENT = 110,
  /**
   * The receive space cannot be laid out.
   */
  FLEXCAST_ERROR_SPACE = 111,
  /**
   * The operation has failed, on all ranks.
   */
  FLEXCAST_ERROR_FAILED = 112,
  /**
   * The communicator cannot be used any more: an operation has failed before.
   */
  FLEXCAST_ERROR_BROKEN = 113,
  /**
   * A request whose outcome has been given before.
   */
  FLEXCAST_ERROR_REQUEST_OVER = 114,
  /**
   * An error of a later version of the library inside.
   */
  FLEXCAST_ERROR_OTHER = 115,
  /**
   * The card has not what the configuration asks for.
   */
  FLEXCAST_ERROR_UNSUPPORTED = 116,
  /**
   * The libraries of the card are not installed, or not where `libraries` says, or of another generation. Install
   * DOCA, or take the emulator's.
   */
  FLEXCAST_ERROR_NOT_INSTALLED = 117,
  /**
   * No card of that name, or none at all. See whether its driver is loaded.
   */
  FLEXCAST_ERROR_NO_DEVICE = 118,
  /**
   * The card is there and cannot be opened, mostly for want of permission.
   */
  FLEXCAST_ERROR_OPEN_DEVICE = 119,
  /**
   * The firmware is no image that the library can use: no ELF for a DPA, or built for another version.
   */
  FLEXCAST_ERROR_IMAGE = 120,
  /**
   * The firmware has stopped: it panicked, trapped, or ran for too long. The text says where.
   */
  FLEXCAST_ERROR_DEVICE_FAULT = 121,
  /**
   * The card did not answer within the bound of a wait.
   */
  FLEXCAST_ERROR_TIMEOUT = 122,
  /**
   * The progress thread of a communicator cannot be started.
   */
  FLEXCAST_ERROR_PROGRESS_THREAD = 123,
  /**
   * No network interface of that name or address, or none that is up.
   */
  FLEXCAST_ERROR_INTERFACE = 124,
  /**
   * The system refused a socket, or something of it.
   */
  FLEXCAST_ERROR_SOCKET = 125,
  /**
   * An environment variable has a value that it cannot have.
   */
  FLEXCAST_ERROR_VARIABLE = 126,
  /**
   * The system has no userfaultfd, or does not let this process have it: leave `memory_watch` out.
   */
  FLEXCAST_ERROR_WATCH = 127,
  /**
   * An aggregator of sparse AllReduce that is no rank failed: the text names its address.
   */
  FLEXCAST_ERROR_AGGREGATOR = 128,
  /**
   * The operation has failed, on all ranks, because of a number that this rank contributed: it is beyond
   * the setting `sparse.fixed_point`, infinite or not a number.
   */
  FLEXCAST_ERROR_CONTRIBUTION = 129,
  /**
   * The bytes of a buffer cannot be borrowed: a service process may still write to them.
   */
  FLEXCAST_ERROR_LEASED = 130,
  /**
   * The operation has failed because of a connection between this rank and another one: the text names the rank, its
   * address and what is wrong.
   */
  FLEXCAST_ERROR_CONNECTION = 131,
  /**
   * The card gives this process no execution unit for a thread: the text names those that were asked for.
   */
  FLEXCAST_ERROR_UNITS = 132,
} flexcast_status;

/**
 * The ranks of a job before they are connected. Made by one of the flexcast_bootstrap_...() functions.
 */
typedef struct flexcast_bootstrap flexcast_bootstrap;

/**
 * Ranks that broadcast and gather among one another. Made by flexcast_comm_create() or flexcast_comm_split().
 */
typedef struct flexcast_comm flexcast_comm;

/**
 * What a process communicates through: a card with or without the firmware on its DPA, or a network interface. Made by
 * flexcast_endpoint_open().
 */
typedef struct flexcast_endpoint flexcast_endpoint;

/**
 * An operation: to be started, under way or over. One of flexcast_post() is freed by the flexcast_wait() or
 * flexcast_test() that reports its end; one of flexcast_prepare() stays until flexcast_request_free().
 */
typedef struct flexcast_request flexcast_request;

/**
 * Gets a line of the log: its level (FLEXCAST_LOG_ERROR to FLEXCAST_LOG_TRACE), the part of the library that it comes
 * from, and its text, both for the duration of the call. From any thread, also one of the library's. It must not use
 * the library, and must return.
 */
typedef void (*flexcast_log_callback)(void *user, int level, const char *target, const char *text);

/**
 * What flexcast_endpoint_open() needs. To be initialised by flexcast_endpoint_options_default().
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * Folder of libflexio.so, libibverbs.so.1, libmlx5.so.1 and libdoca_common.so.2, such as that of the emulator's
   * libraries; NULL: what FLEXCAST_LIBRARIES says, or else those of the installed DOCA, wherever the dynamic loader
   * finds them (LD_LIBRARY_PATH). Once a process has loaded some, it keeps them.
   */
  const char *libraries;
  /**
   * RDMA device, such as "mlx5_0"; NULL: what FLEXCAST_DEVICE says, or else the first one.
   */
  const char *device;
  /**
   * File of the image `allgather`; NULL: what FLEXCAST_FIRMWARE says. Not used if `firmware` is given.
   */
  const char *firmware_path;
  /**
   * The image in memory; NULL: in the file.
   */
  const void *firmware;
  /**
   * Its bytes.
   */
  size_t firmware_bytes;
  /**
   * What moves the data: "dpa", threads of the card's DPA; "verbs", this process over an RDMA card, which needs no
   * DPA and no firmware; "udp", this process by IP multicast over a network interface, without an RDMA device;
   * "auto", the DPA where card, libraries and firmware are there, else an RDMA card, else the interface. NULL: what
   * FLEXCAST_DATAPATH says, or else the DPA if firmware, libraries or a device are given, here or by a variable, and
   * the interface if none of them is. Alike on all ranks.
   */
  const char *datapath;
  /**
   * Network interface of the datapath "udp", by name or address; NULL: what FLEXCAST_INTERFACE says, or else the
   * first that can multicast.
   */
  const char *interface_name;
  /**
   * How freed memory is noticed, so that its registration is not used again: "off", by flexcast_buffer_invalidate()
   * alone; "userfaultfd", by the system, which reports when pages are unmapped, moved or emptied. NULL: what
   * FLEXCAST_MEMORY_WATCH says, or else "off". The datapath "udp" registers nothing.
   */
  const char *memory_watch;
  /**
   * File of the image `sparse`, which is started on the card's DPA together with what else runs there, for the
   * setting `sparse.aggregation` = dpa; NULL: what FLEXCAST_SPARSE_FIRMWARE says, or else none. Not used by the
   * datapath "udp".
   */
  const char *sparse_firmware_path;
} flexcast_endpoint_options;

/**
 * Gathers: gets `bytes` bytes at `mine`, as many on all ranks, and fills `all`, size times as long, with those of
 * every rank in the order of ranks, as MPI_Allgather does with MPI_BYTE. `user` is what flexcast_bootstrap_callback()
 * got. Returns 0, or anything else for a failure: then all ranks' should fail, rather than wait for ever. It must
 * return: neither longjmp nor an exception may leave it.
 */
typedef int (*flexcast_exchange)(void *user, const void *mine, size_t bytes, void *all);

/**
 * Functions that gather without blocking, as UCC's out-of-band Allgather does. To be zeroed, and given its size. All
 * of them are called on threads that are in flexcast_comm_create(), flexcast_comm_split(), flexcast_comm_test() or
 * flexcast_comm_free() of this bootstrap's communicators, by one thread at a time. They must return: neither longjmp
 * nor an exception may leave them.
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * Begins to gather `bytes` bytes at `mine`, as many on all ranks, into `all`, which is as many times as long as
   * there are ranks, in their order. Both stay until `free`. 0, and a handle of the program's in `handle`; or
   * anything else for a failure.
   */
  int (*start)(void *user, const void *mine, void *all, size_t bytes, void **handle);
  /**
   * 0: over; 1: not yet; anything else: failed.
   */
  int (*test)(void *user, void *handle);
  /**
   * A handle is not used any more, over or not; may be NULL.
   */
  int (*free)(void *user, void *handle);
  /**
   * Given to all of them.
   */
  void *user;
  /**
   * Longest that one takes, in milliseconds; 0: a minute.
   */
  uint64_t timeout_ms;
} flexcast_allgather_functions;

/**
 * Functions of a key-value store that all ranks share, such as the store of a PyTorch process group. To be zeroed, and
 * given its size. Called as those of flexcast_allgather_functions.
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * Sets a key, which nobody has set, to `bytes` bytes. 0, or anything else for a failure.
   */
  int (*set)(void *user, const char *key, const void *value, size_t bytes);
  /**
   * Gets what a key was set to, `bytes` bytes. 0: it is there; 1: not yet, to be asked for again; anything else: a
   * failure, such as another length.
   */
  int (*get)(void *user, const char *key, void *value, size_t bytes);
  /**
   * Given to both.
   */
  void *user;
  /**
   * Begins all keys; NULL: "flexcast". Alike on all ranks, and another one for every bootstrap of the same store.
   * Copied.
   */
  const char *prefix;
  /**
   * Longest that one exchange takes, in milliseconds; 0: a minute.
   */
  uint64_t timeout_ms;
} flexcast_store_functions;

/**
 * Parameters of a communicator; alike on all ranks. To be initialised by flexcast_config_default(), or zeroed and
 * given its size. Parameters that are no fields here are set by flexcast_config_set(). It may be copied, and needs no
 * freeing.
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * What carries the data of an operation, one of FLEXCAST_ALGORITHM_*. With FLEXCAST_CONTROL_DEVICE it is
   * multicast.
   */
  uint32_t algorithm;
  /**
   * Where barrier, activation, recovery and final handshake run, one of FLEXCAST_CONTROL_*.
   */
  uint32_t control;
  /**
   * What carries the data: FLEXCAST_TRANSPORT_UD or FLEXCAST_TRANSPORT_UC_UNICAST.
   */
  uint32_t transport;
  /**
   * Whether (1 or 0) reductions combine contributions in the order of ranks whatever their length, so that
   * floating-point results are those of one core that goes through all contributions in turn.
   */
  uint32_t reproducible;
  /**
   * Whether (1 or 0) a thread of the library moves operations on; it sleeps while none is under way. 0: the program
   * does, by tests, waits and flexcast_progress().
   */
  uint32_t progress_thread;
  /**
   * Processor that the thread stays on, by its number in the system; FLEXCAST_CPU_ANY: the system chooses.
   */
  uint32_t progress_cpu;
  /**
   * Traffic class of data packets, and of control messages and fetches; bits 7 to 5 are the priority. Of RDMA cards.
   */
  uint32_t data_class;
  /**
   * See `data_class`.
   */
  uint32_t control_class;
  /**
   * Most bytes that a rank can receive in one operation; 0: what the library chooses, 64 MiB.
   */
  uint64_t max_receive_bytes;
  /**
   * How long a rank waits for others to begin an operation, in nanoseconds; 0, for this and the next one: what suits
   * the card, which is longer for emulated ones.
   */
  uint64_t barrier_timeout_ns;
  /**
   * How long an operation that all ranks have begun may stand still, in nanoseconds, beyond three times what it
   * should take. It counts from the last data that came or went.
   */
  uint64_t recovery_timeout_ns;
  /**
   * What flexcast_config_set() has kept. Not to be written by programs.
   */
  char settings[FLEXCAST_SETTINGS_BYTES];
} flexcast_config;

/**
 * What flexcast_init() may be given. To be zeroed, and given its size.
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * The endpoint; NULL: what the variables say.
   */
  const flexcast_endpoint_options *endpoint;
  /**
   * Parameters of the communicator; NULL: the defaults, and what the variables say.
   */
  const flexcast_config *config;
  /**
   * How ranks exchange, as for flexcast_bootstrap_callback(); NULL: as flexcast_bootstrap_environment().
   */
  flexcast_exchange exchange;
  /**
   * Given to `exchange`.
   */
  void *user;
  /**
   * The own rank, if there is an `exchange`.
   */
  int rank;
  /**
   * How many ranks there are, if there is an `exchange`.
   */
  int ranks;
} flexcast_init_options;

/**
 * What a communicator takes of its endpoint's card, and what it has done.
 */
typedef struct {
  /**
   * The own rank.
   */
  uint32_t rank;
  /**
   * Number of ranks.
   */
  uint32_t ranks;
  /**
   * DPA threads.
   */
  uint32_t threads;
  /**
   * Queue pairs: to receive, to send, over the own card, to other ranks.
   */
  uint32_t receive_queue_pairs;
  /**
   * See `receive_queue_pairs`.
   */
  uint32_t send_queue_pairs;
  /**
   * See `receive_queue_pairs`.
   */
  uint32_t loopback_queue_pairs;
  /**
   * See `receive_queue_pairs`.
   */
  uint32_t control_queue_pairs;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Staging slots in DPA memory, in bytes.
   */
  uint64_t staging_bytes;
  /**
   * Bitmaps, contexts and rings, which the DPA's last-level cache should hold, in bytes.
   */
  uint64_t hot_bytes;
  /**
   * Control messages sent: barrier signals, activations, requests for missing blocks, blocks offered, final
   * messages, failures reported.
   */
  uint64_t barrier_messages;
  /**
   * See `barrier_messages`.
   */
  uint64_t activate_messages;
  /**
   * See `barrier_messages`.
   */
  uint64_t fetch_messages;
  /**
   * See `barrier_messages`.
   */
  uint64_t acknowledge_messages;
  /**
   * See `barrier_messages`.
   */
  uint64_t final_messages;
  /**
   * See `barrier_messages`.
   */
  uint64_t failed_messages;
  /**
   * Receive completions consumed on the DPA, as of the last report, like all that follow up to
   * `receive_instructions`.
   */
  uint64_t receive_cqes;
  /**
   * Chunks accepted.
   */
  uint64_t accepted_chunks;
  /**
   * Chunks discarded: there already; of no place in the operation; of another or closed operation; of a wrong
   * length.
   */
  uint64_t duplicate_chunks;
  /**
   * See `duplicate_chunks`.
   */
  uint64_t out_of_range_chunks;
  /**
   * See `duplicate_chunks`.
   */
  uint64_t wrong_id_chunks;
  /**
   * See `duplicate_chunks`.
   */
  uint64_t wrong_length_chunks;
  /**
   * Error completions.
   */
  uint64_t error_cqes;
  /**
   * Instructions that the receive workers have retired.
   */
  uint64_t receive_instructions;
  /**
   * Chunks sent.
   */
  uint64_t sent_chunks;
  /**
   * Doorbells that they took.
   */
  uint64_t send_doorbells;
  /**
   * Registrations of the endpoint's cache that were there when asked for, and that had to be made.
   */
  uint64_t registration_hits;
  /**
   * See `registration_hits`.
   */
  uint64_t registration_misses;
  /**
   * Registrations that are there, and their bytes.
   */
  uint64_t registrations;
  /**
   * See `registrations`.
   */
  uint64_t registered_bytes;
} flexcast_stats;

/**
 * Is called once for every post, when the operation is over, by whichever thread finds that out: a progress thread of
 * the library, or one of the program's in flexcast_post(), flexcast_test(), flexcast_wait() or flexcast_progress().
 * `user` is the operation's, `request` its handle, `status` how it ended; flexcast_last_error() has the text. A test
 * of another thread may report the end before it is called. It may use the library, post and free `request` among
 * others, but not wait, which is refused; neither longjmp nor an exception may leave it. An operation that ends while
 * a callback runs on the thread is called back when that has returned.
 */
typedef void (*flexcast_callback)(void *user, flexcast_request *request, flexcast_status status);

/**
 * A collective with its arguments, for flexcast_post() and flexcast_prepare(). To be begun by
 * flexcast_collective_of(), or zeroed and given its size; then it gets what its operation needs. Other fields are not
 * used.
 *
 * All ranks post the same operations of a communicator in the same order with the same arguments. Lists have an entry
 * for each rank, in bytes, of reductions in elements, and are copied. Displacements count in bytes from the start of
 * the buffer; NULL: blocks lie one after another. Blocks that are received must not overlap, and bytes between them
 * stay as they are.
 */
typedef struct {
  /**
   * Bytes of this structure, by the header that the program was compiled with.
   */
  size_t size;
  /**
   * One of FLEXCAST_OPERATION_*.
   */
  uint32_t operation;
  /**
   * 0, or FLEXCAST_FLAG_... added up.
   */
  uint32_t flags;
  /**
   * What is sent, in memory of the host, or FLEXCAST_IN_PLACE.
   */
  const void *send;
  /**
   * Where it is received, in memory of the host; of a Scatter, FLEXCAST_IN_PLACE on the root.
   */
  void *receive;
  /**
   * Bytes; of reductions, elements.
   */
  size_t count;
  /**
   * Lengths of the blocks in `send`.
   */
  const size_t *send_counts;
  /**
   * Where they begin; may be NULL.
   */
  const size_t *send_displacements;
  /**
   * Lengths of the blocks in `receive`.
   */
  const size_t *receive_counts;
  /**
   * Where they begin; may be NULL.
   */
  const size_t *receive_displacements;
  /**
   * Element of reductions: FLEXCAST_FLOAT and the like.
   */
  uint32_t data_type;
  /**
   * Operator of reductions: FLEXCAST_SUM and the like. One that is not defined for the type is not supported.
   */
  uint32_t reduction;
  /**
   * Root of those that have one.
   */
  int root;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Called at the end; may be NULL.
   */
  flexcast_callback callback;
  /**
   * Given to it.
   */
  void *user;
  /**
   * Of a sparse AllReduce, alike on all ranks: bytes of a block, a multiple of 4 and of an element, 256 to 16384.
   * 0: 1024.
   */
  uint32_t block_bytes;
  /**
   * The same: most blocks of one message, 1 to 32. 0: 32.
   */
  uint32_t blocks_per_message;
} flexcast_collective;

/**
 * What an operation did. Times are nanoseconds of the library's clock, FLEXCAST_NEVER for what has not happened.
 */
typedef struct {
  /**
   * A flexcast_status: how it ended.
   */
  int32_t status;
  /**
   * 1 if the card could not be made to let go of the memory after a failure: it must stay allocated until the
   * communicator is freed.
   */
  uint32_t memory_held;
  /**
   * Posted by the program.
   */
  uint64_t posted_ns;
  /**
   * Workers armed.
   */
  uint64_t armed_ns;
  /**
   * All ranks can receive.
   */
  uint64_t ready_ns;
  /**
   * Own bytes begun to be multicast.
   */
  uint64_t sending_ns;
  /**
   * Own bytes sent.
   */
  uint64_t sent_ns;
  /**
   * All received by multicast.
   */
  uint64_t received_ns;
  /**
   * Cutoff reached.
   */
  uint64_t cut_off_ns;
  /**
   * Everything in the buffer, what was fetched from the neighbour included.
   */
  uint64_t complete_ns;
  /**
   * Over.
   */
  uint64_t released_ns;
  /**
   * Bytes that came from other ranks.
   */
  uint64_t foreign_bytes;
  /**
   * Chunks that multicast lost and the neighbour had.
   */
  uint64_t recovered_chunks;
  /**
   * Their bytes.
   */
  uint64_t recovered_bytes;
  /**
   * Reads that fetched them.
   */
  uint64_t reads;
  /**
   * Fetch requests of the other neighbour.
   */
  uint64_t fetches_served;
  /**
   * Chunks that came by multicast after they had been given up for lost; not counted by the datapath "dpa".
   */
  uint64_t late_chunks;
  /**
   * Datagrams to the group for which the socket's receive buffer had no room; of the datapath "udp".
   */
  uint64_t overflowed_datagrams;
  /**
   * Why it failed: a FLEXCAST_CAUSE_... number.
   */
  uint32_t cause;
  /**
   * Code that belongs to the cause: FLEXCAST_CODE_... of FLEXCAST_CAUSE_DEVICE and FLEXCAST_CAUSE_CONNECTION,
   * FLEXCAST_WAITED_FOR_... of FLEXCAST_CAUSE_SILENT, the aggregator's number of FLEXCAST_CAUSE_AGGREGATOR, else 0.
   */
  uint32_t code;
  /**
   * Rank that is to blame.
   */
  uint32_t failed_rank;
  /**
   * Rank that found it.
   */
  uint32_t detecting_rank;
  /**
   * The rate that limited how fast the own bytes were multicast, in Mbit/s; 0: none. Of the datapath "udp".
   */
  uint32_t pace_mbit_per_s;
  /**
   * 1 if the DPAs of the ranks' cards have added, of a sparse AllReduce (the setting `sparse.aggregation`).
   */
  uint32_t added_by_dpa;
  /**
   * Largest difference between a sum and that of the contributions, except for its rounding to a float, if they were
   * added as fixed-point numbers (the setting `sparse.fixed_point`); else 0.
   */
  double sum_error;
} flexcast_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The library's version of the interface. A program checks that it is no less than FLEXCAST_ABI_VERSION of its header
 * before anything else.
 */
uint32_t flexcast_abi_version(void);

/**
 * The library's release, such as "0.1.0".
 */
const char *flexcast_version(void);

/**
 * What a code stands for. For any number; the text is never freed.
 */
const char *flexcast_strerror(int32_t status);

/**
 * What went wrong in the last call of this thread that did not return FLEXCAST_OK: the value, the limit and the next
 * step. The text is the library's, and valid until the next such call.
 */
const char *flexcast_last_error(void);

/**
 * Sets how much is logged, FLEXCAST_LOG_OFF to FLEXCAST_LOG_TRACE, and where to: to a function of the program, which
 * gets `user`, or to stderr (NULL). Before it is called the level is what the variable FLEXCAST_LOG says (off, error,
 * warn, info, debug or trace), or else FLEXCAST_LOG_WARN, and lines go to stderr. A function that was set before may
 * still be called by other threads for a moment.
 */
flexcast_status flexcast_log(int level,
                             flexcast_log_callback callback,
                             void *user);

/**
 * The defaults: installed DOCA, first device, no firmware. `size` is sizeof(flexcast_endpoint_options).
 */
flexcast_status flexcast_endpoint_options_default(flexcast_endpoint_options *options, size_t size);

/**
 * Opens a card and starts the firmware on its DPA, or an RDMA card without firmware, or a network interface, as
 * `datapath` says. `options` may be NULL: the defaults, and what variables say.
 */
flexcast_status flexcast_endpoint_open(const flexcast_endpoint_options *options,
                                       flexcast_endpoint **endpoint);

/**
 * The same without blocking: `endpoint` becomes a handle at once, which flexcast_endpoint_test() and
 * flexcast_endpoint_close() take until it is open. A thread of the library opens it.
 */
flexcast_status flexcast_endpoint_open_begin(const flexcast_endpoint_options *options,
                                             flexcast_endpoint **endpoint);

/**
 * Whether an endpoint is open (`ready` becomes 1) or not yet (0). If it could not be opened the status says why, now
 * and later; then it is only to be closed.
 */
flexcast_status flexcast_endpoint_test(flexcast_endpoint *endpoint,
                                       int *ready);

/**
 * What moves the data of an endpoint's communicators: "dpa", "verbs" or "udp". The text belongs to the library and
 * lasts.
 */
flexcast_status flexcast_endpoint_datapath(flexcast_endpoint *endpoint,
                                           const char **name);

/**
 * Closes an endpoint. Refused (FLEXCAST_ERROR_BUSY) while it has communicators. One that is being opened is closed as
 * soon as it is open. An RDMA card still answers peers of communicators that were freed a moment ago; this waits for
 * the rest of that moment, 16.8 ms at most with default settings, 100 ms with any. A program that ends without closing
 * its endpoints may leave peers without their last acknowledgement: then their operation fails though this rank has
 * all bytes.
 */
flexcast_status flexcast_endpoint_close(flexcast_endpoint *endpoint);

/**
 * Registers memory with an endpoint before its first use, which is the expensive part of it. Not needed: operations
 * register what they are given, and the registration is kept. The memory stays allocated until
 * flexcast_buffer_invalidate() or flexcast_endpoint_close().
 */
flexcast_status flexcast_register(flexcast_endpoint *endpoint,
                                  void *buffer,
                                  size_t bytes);

/**
 * Forgets registrations. Unless the memory is watched (`memory_watch` in flexcast_endpoint_options), to be called
 * before memory is freed or unmapped that an operation has used or flexcast_register() has registered; otherwise what
 * is allocated there later would be sent from, or received into, pages that are not its own. Refused
 * (FLEXCAST_ERROR_BUSY) while an operation uses the memory: it must not be freed then.
 */
flexcast_status flexcast_buffer_invalidate(flexcast_endpoint *endpoint,
                                           const void *buffer,
                                           size_t bytes);

/**
 * Ranks that exchange by a function of the program; `user` is given to it. It is called on threads that are in
 * flexcast_comm_create(), flexcast_comm_split() or flexcast_comm_test() of this bootstrap's communicators, by one
 * thread at a time.
 */
flexcast_status flexcast_bootstrap_callback(flexcast_exchange exchange,
                                            void *user,
                                            int rank,
                                            int size,
                                            flexcast_bootstrap **bootstrap);

/**
 * Ranks that exchange by an Allgather of the program that does not block.
 */
flexcast_status flexcast_bootstrap_allgather(const flexcast_allgather_functions *functions,
                                             int rank,
                                             int size,
                                             flexcast_bootstrap **bootstrap);

/**
 * Ranks that exchange by a key-value store of the program.
 */
flexcast_status flexcast_bootstrap_store(const flexcast_store_functions *functions,
                                         int rank,
                                         int size,
                                         flexcast_bootstrap **bootstrap);

/**
 * Ranks that meet over TCP: rank 0 listens at `address` ("host:port"), the others connect. `job` distinguishes jobs
 * that meet at one port by mistake; may be NULL. Waits for all ranks, and in every exchange, `timeout_ms` milliseconds
 * and a few seconds at most; 0: a minute. `secret` is a string of 32 to 4096 bytes that was drawn at random, as
 * `head -c 32 /dev/urandom | base64` does, the same on all ranks: only they come together, and what they exchange is
 * encrypted. NULL: what the file says that the variable FLEXCAST_SECRET_FILE names, or FLEXCAST_SECRET, or else none.
 */
flexcast_status flexcast_bootstrap_tcp(const char *address,
                                       const char *job,
                                       const char *secret,
                                       int rank,
                                       int size,
                                       uint64_t timeout_ms,
                                       flexcast_bootstrap **bootstrap);

/**
 * The same with what the environment says: FLEXCAST_RANK, FLEXCAST_SIZE, FLEXCAST_STORE ("host:port"), FLEXCAST_JOB
 * (may be absent), and FLEXCAST_SECRET_FILE or FLEXCAST_SECRET (may be absent).
 */
flexcast_status flexcast_bootstrap_environment(flexcast_bootstrap **bootstrap);

/**
 * Who the calling process is, and of how many. Either pointer may be NULL.
 */
flexcast_status flexcast_bootstrap_rank(flexcast_bootstrap *bootstrap, int *rank, int *size);

/**
 * Ends it; communicators that it has made stay. Refused (FLEXCAST_ERROR_BUSY) while one is being made.
 */
flexcast_status flexcast_bootstrap_free(flexcast_bootstrap *bootstrap);

/**
 * The defaults, with what variables of the environment say: FLEXCAST_ALGORITHM for `algorithm`,
 * FLEXCAST_PROGRESS_THREAD for `progress_thread` and so on, with values as flexcast_config_set() takes them. `size` is
 * sizeof(flexcast_config). FLEXCAST_ERROR_VARIABLE if a variable has a value that it cannot have, be it of a field or
 * of another setting.
 */
flexcast_status flexcast_config_default(flexcast_config *config,
                                        size_t size);

/**
 * Sets a parameter by its name, such as "slots" or "service.endpoints", or by its variable, such as "FLEXCAST_SLOTS":
 * a field, or one that the structure keeps. docs/embed.md lists all. Numbers are decimal; `algorithm`, `control`,
 * `transport` and others take a word, such as "service", in the place of FLEXCAST_CONTROL_SERVICE. The value is
 * copied. FLEXCAST_ERROR_CONFIG for a name that there is not, or a value that it cannot have: the structure is as it
 * was, and flexcast_last_error() has the name, the value, and what it may be or the name that is most like it. A
 * setting that the endpoint's datapath does not use is refused when the communicator is made.
 */
flexcast_status flexcast_config_set(flexcast_config *config,
                                    const char *name,
                                    const char *value);

/**
 * Makes a communicator of all ranks of a bootstrap. All of them call it, with the same configuration (NULL: the
 * defaults, and what variables say). It blocks as long as the bootstrap's exchanges do. A rank that fails is named by
 * all others.
 */
flexcast_status flexcast_comm_create(flexcast_endpoint *endpoint,
                                     flexcast_bootstrap *bootstrap,
                                     const flexcast_config *config,
                                     flexcast_comm **comm);

/**
 * The same without blocking: `comm` becomes a handle at once, which flexcast_comm_test() and flexcast_comm_free() take
 * until the communicator is ready. The configuration need not stay.
 */
flexcast_status flexcast_comm_create_begin(flexcast_endpoint *endpoint,
                                           flexcast_bootstrap *bootstrap,
                                           const flexcast_config *config,
                                           flexcast_comm **comm);

/**
 * Parts the ranks of a communicator, as MPI_Comm_split does: those of one colour (0 or more) become a communicator, in
 * the order of their keys and then of their ranks. A rank of colour FLEXCAST_UNDEFINED gets NULL and FLEXCAST_OK. All
 * ranks call it, with the bootstrap that the communicator was made with; NULL for one of flexcast_init(), and its
 * parts.
 */
flexcast_status flexcast_comm_split(flexcast_comm *comm,
                                    flexcast_bootstrap *bootstrap,
                                    int color,
                                    int64_t key,
                                    flexcast_comm **part);

/**
 * The same without blocking, as flexcast_comm_create_begin(). A rank of colour FLEXCAST_UNDEFINED gets a handle, too,
 * which it tests until it is ready, and frees.
 */
flexcast_status flexcast_comm_split_begin(flexcast_comm *comm,
                                          flexcast_bootstrap *bootstrap,
                                          int color,
                                          int64_t key,
                                          flexcast_comm **part);

/**
 * Whether a communicator is ready (`ready` becomes 1) or still being made (0); goes on with making it. If it could not
 * be made the status says why, now and later; then it is only to be freed. To be called by all ranks until it is
 * ready.
 */
flexcast_status flexcast_comm_test(flexcast_comm *comm,
                                   int *ready);

/**
 * Frees a communicator; the others need not be asked. Its progress thread, if it has one, has ended when this returns,
 * unless it is the one that calls. Refused (FLEXCAST_ERROR_BUSY) while an operation is under way: wait for it, or
 * cancel it and wait. One of flexcast_init() closes its endpoint, and is refused while the endpoint has others. One
 * that is being made is given up: then the bootstrap can only be freed, too, and the others learn it by their own
 * bounds. Until the library's attempt has ended, at most the bootstrap's timeout later, to free the bootstrap and to
 * close the endpoint are refused (FLEXCAST_ERROR_BUSY): try again.
 */
flexcast_status flexcast_comm_free(flexcast_comm *comm);

/**
 * The own rank, and how many there are. Either pointer may be NULL.
 */
flexcast_status flexcast_comm_rank(flexcast_comm *comm, int *rank, int *size);

/**
 * The endpoint of a communicator, as flexcast_comm_create() got it or flexcast_init() has opened it.
 */
flexcast_status flexcast_comm_endpoint(flexcast_comm *comm, flexcast_endpoint **endpoint);

/**
 * Which control carries the operations of a communicator, one of FLEXCAST_CONTROL_*, alike on all ranks. `reason` (may
 * be NULL) becomes NULL where it is the one of the configuration; else a text that says which rank has no service
 * process, and why not. The text stays until the communicator is freed.
 */
flexcast_status flexcast_comm_control(flexcast_comm *comm,
                                      uint32_t *control,
                                      const char **reason);

/**
 * Moves the operations of a communicator on as far as they go now, without blocking. `moved` (may be NULL) becomes 1
 * if anything happened, else 0. What the card does needs no such call; neighbours may need it even when no operation
 * of this rank is under way.
 */
flexcast_status flexcast_progress(flexcast_comm *comm,
                                  int *moved);

/**
 * Ends all operations of a communicator as failures, on all ranks; it can only be freed afterwards. To be followed by
 * tests or waits: the memory is in use until they say that the operations are over.
 */
flexcast_status flexcast_cancel(flexcast_comm *comm);

/**
 * A descriptor to sleep on (poll, epoll): an eventfd that counts operations of the communicator that have ended since
 * it was last read, of those posted after this call; their callbacks have returned. The library's: it is not to be
 * closed, and is gone with the communicator. FLEXCAST_NOT_SUPPORTED without a progress thread (`progress_thread` in
 * flexcast_config), since nothing would end while the program sleeps.
 */
flexcast_status flexcast_comm_event_fd(flexcast_comm *comm,
                                       int *descriptor);

/**
 * Opens the endpoint, meets the other ranks, and makes the communicator of all of them: flexcast_endpoint_open(),
 * flexcast_bootstrap_environment() and flexcast_comm_create() in one. `options` may be NULL. flexcast_comm_free() of
 * this communicator closes the endpoint, too; flexcast_comm_endpoint() gives it, for flexcast_buffer_invalidate() and
 * others. flexcast_comm_split() takes NULL as its bootstrap. A process that opens its endpoint itself, or makes more
 * than one communicator of all ranks, calls the three functions.
 */
flexcast_status flexcast_init(const flexcast_init_options *options,
                              flexcast_comm **comm);

/**
 * Fills `stats`, of `size` = sizeof(flexcast_stats) bytes.
 */
flexcast_status flexcast_comm_stats(flexcast_comm *comm, flexcast_stats *stats, size_t size);

/**
 * Posts a collective, and returns at once. `request` becomes its request, before a callback is called; NULL after a
 * refusal. It is freed by the flexcast_wait() or flexcast_test() that reports its end.
 *
 * From here until the operation is over the memory is the library's: it stays allocated, is registered, and is touched
 * by nobody else. Afterwards it may be freed once flexcast_buffer_invalidate() was called.
 *
 * FLEXCAST_NOT_SUPPORTED if the library does not carry the operation: no error, nothing is posted, and alike on all
 * ranks that give the same operation, lengths and reduction, so that all of them can use their own. Lengths that ranks
 * need not know of one another (Alltoallv, Gatherv, Scatterv) do not matter.
 *
 * From any thread; two threads that post to one communicator at a time need an order of their own.
 */
flexcast_status flexcast_post(flexcast_comm *comm,
                              const flexcast_collective *collective,
                              flexcast_request **request);

/**
 * Makes the request of a collective without posting it. flexcast_start() posts it, again and again, and
 * flexcast_request_free() frees it. Refused as by flexcast_post().
 */
flexcast_status flexcast_prepare(flexcast_comm *comm,
                                 const flexcast_collective *collective,
                                 flexcast_request **request);

/**
 * Posts an operation that flexcast_prepare() has made, as flexcast_post() does. FLEXCAST_ERROR_BUSY while it is under
 * way.
 */
flexcast_status flexcast_start(flexcast_request *request);

/**
 * Whether an operation is over (`done` becomes 1) or not (0); moves its communicator on. Once over, the status is the
 * operation's own, and a request of flexcast_post() is freed.
 */
flexcast_status flexcast_test(flexcast_request *request,
                              int *done);

/**
 * Fills `report`, of `size` = sizeof(flexcast_report) bytes, with what an operation did that is over. For a request of
 * flexcast_post(): after flexcast_wait_for(), or in the callback, since flexcast_wait() and flexcast_test() free it.
 */
flexcast_status flexcast_request_report(flexcast_request *request,
                                        flexcast_report *report,
                                        size_t size);

/**
 * Frees a request of flexcast_prepare() that is not under way, or one of flexcast_post() that is over and was not
 * freed by flexcast_wait() or flexcast_test(). Refused (FLEXCAST_ERROR_BUSY) before: the card uses the memory.
 */
flexcast_status flexcast_request_free(flexcast_request *request);

/**
 * Waits until an operation is over; the status is its own, and a request of flexcast_post() is freed. It ends: every
 * phase of an operation has its bound. The caller moves the communicator on and sleeps where it can, and the progress
 * thread stays away meanwhile. Not to be called from a callback.
 */
flexcast_status flexcast_wait(flexcast_request *request);

/**
 * Waits `timeout_ns` nanoseconds at most, and a millisecond longer at worst; FLEXCAST_NEVER: until it is over. `done`
 * becomes 1 if the operation is over, else 0, and then the status is FLEXCAST_OK. The request is not freed: for its
 * report (flexcast_request_report()), for loops that poll something else, too, and for several threads that wait for
 * one request. flexcast_request_free() or flexcast_wait() frees it then.
 */
flexcast_status flexcast_wait_for(flexcast_request *request,
                                  uint64_t timeout_ns,
                                  int *done);

/**
 * Moves the operations of a communicator on as flexcast_progress(), and if nothing happens waits until something may
 * have come, `timeout_ns` nanoseconds at most and a millisecond longer at worst; it may return before. For loops that
 * wait for more than one operation, or for something else, too. The progress thread stays away meanwhile. Not to be
 * called from a callback.
 */
flexcast_status flexcast_progress_for(flexcast_comm *comm,
                                      uint64_t timeout_ns,
                                      int *moved);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/*
 * One call for each collective: arguments of flexcast_post() in their usual order, as MPI has them, with lengths and displacements in bytes.
 * FLEXCAST_OPERATION_... says what each does. Flags, callbacks and sparse blocks of other lengths take the structure and flexcast_post().
 */

/** A collective of an operation (FLEXCAST_OPERATION_...), with all else zero. */
static inline flexcast_collective flexcast_collective_of(uint32_t operation)
{
    flexcast_collective collective;
    memset(&collective, 0, sizeof collective);
    collective.size = sizeof collective;
    collective.operation = operation;
    return collective;
}

/** Posts FLEXCAST_OPERATION_BARRIER. */
static inline flexcast_status flexcast_barrier(flexcast_comm *comm, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_BROADCAST. */
static inline flexcast_status flexcast_broadcast(flexcast_comm *comm, void *buffer, size_t bytes, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_BROADCAST);
    collective.receive = buffer;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLGATHER: `bytes` bytes of every rank. */
static inline flexcast_status flexcast_allgather(flexcast_comm *comm, const void *send, void *receive, size_t bytes,
                                                 flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLGATHERV; `displacements` may be NULL. */
static inline flexcast_status flexcast_allgatherv(flexcast_comm *comm, const void *send, void *receive, const size_t *counts,
                                                  const size_t *displacements, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHERV);
    collective.send = send;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.receive_displacements = displacements;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLREDUCE of `count` elements. */
static inline flexcast_status flexcast_allreduce(flexcast_comm *comm, const void *send, void *receive, size_t count, uint32_t data_type,
                                                 uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLREDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SPARSE_ALLREDUCE of `count` elements, in blocks of 1 KiB. */
static inline flexcast_status flexcast_sparse_allreduce(flexcast_comm *comm, const void *send, void *receive, size_t count,
                                                        uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SPARSE_ALLREDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE of `count` elements. */
static inline flexcast_status flexcast_reduce(flexcast_comm *comm, const void *send, void *receive, size_t count, uint32_t data_type,
                                              uint32_t reduction, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK: each rank gets `count` elements. */
static inline flexcast_status flexcast_reduce_scatter_block(flexcast_comm *comm, const void *send, void *receive, size_t count,
                                                            uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE_SCATTER: rank r gets `counts[r]` elements. */
static inline flexcast_status flexcast_reduce_scatter(flexcast_comm *comm, const void *send, void *receive, const size_t *counts,
                                                      uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE_SCATTER);
    collective.send = send;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLTOALL: `bytes` bytes of every rank to every rank. */
static inline flexcast_status flexcast_alltoall(flexcast_comm *comm, const void *send, void *receive, size_t bytes,
                                                flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLTOALL);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLTOALLV; displacements may be NULL. */
static inline flexcast_status flexcast_alltoallv(flexcast_comm *comm, const void *send, const size_t *send_counts,
                                                 const size_t *send_displacements, void *receive, const size_t *receive_counts,
                                                 const size_t *receive_displacements, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLTOALLV);
    collective.send = send;
    collective.send_counts = send_counts;
    collective.send_displacements = send_displacements;
    collective.receive = receive;
    collective.receive_counts = receive_counts;
    collective.receive_displacements = receive_displacements;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_GATHER: `bytes` bytes of every rank. */
static inline flexcast_status flexcast_gather(flexcast_comm *comm, const void *send, void *receive, size_t bytes, int root,
                                              flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_GATHER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_GATHERV: `bytes` bytes of this rank. The lists are the root's, and `displacements` may be NULL. */
static inline flexcast_status flexcast_gatherv(flexcast_comm *comm, const void *send, size_t bytes, void *receive, const size_t *counts,
                                               const size_t *displacements, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_GATHERV);
    collective.send = send;
    collective.count = bytes;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.receive_displacements = displacements;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SCATTER: `bytes` bytes to every rank. */
static inline flexcast_status flexcast_scatter(flexcast_comm *comm, const void *send, void *receive, size_t bytes, int root,
                                               flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SCATTER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SCATTERV: `bytes` bytes for this rank. The lists are the root's, and `displacements` may be NULL. */
static inline flexcast_status flexcast_scatterv(flexcast_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                                                void *receive, size_t bytes, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SCATTERV);
    collective.send = send;
    collective.send_counts = counts;
    collective.send_displacements = displacements;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

#endif  /* FLEXCAST_H */
