//! The ABI is a promise: these tests fail when bytes move without a new version.
use core::mem::offset_of;

use flexcast_abi::progress::COMMAND_BYTES;
use flexcast_abi::receive_thread::PREPARE_RECEIVE;
use flexcast_abi::rpc::{ACTIVATE, BRING_UP};
use flexcast_abi::{
    ABI_HASH, ABI_MIN_VERSION, ABI_VERSION, Activation, BitmapMemory, CompletionFlag, CompletionQueueMemory,
    ContextAddress, ContextFault, ContextMemory, ContextRefusal, DeviceAddress, FLAG_MAGIC, GroupContext, HostLine,
    Layout, MessageMemory, Operation, OperationState, PingPongContext, Placement, ProgressCommand, ProgressDetail,
    ProgressLine, ProgressPeer, ProgressReads, ProgressReport, ProgressThread, ProgressThreadStatus, ReceiveContext,
    ReceiveQueueMemory, ReceiveReport, ReceiveState, ReceiveStatus, ReceiveThread, ReceiveView, Rpc, RpcAnswer,
    RpcArgument, RunRow, SendContext, SendOperation, SendQueueMemory, SendReport, SendRun, SendStatus, SendThread,
    Shared, Signals, SparseElement, SparseInstance, SparseInstanceState, SparseOperation, SparsePeer, SparseReport,
    SparseStatus, SparseThread, SparseThreadState, TableMemory, Transport, bring_up_answer,
};

/// Hashes by version. When this fails, raise ABI_VERSION and add a line; never edit a published one.
const PUBLISHED: &[(u32, u64)] = &[
    (1, 0xf3dc_dfdd_2933_b6ab),
    (2, 0xf5f1_3299_bd8f_72ed),
    (3, 0x81cc_0db3_8624_f88c),
    (4, 0x7e58_00e3_3575_dac9),
    (5, 0x5026_b8a4_574c_37e3),
    (6, 0x27c2_57e6_6b31_6d97),
    (7, 0x99b3_ccc2_9d5c_4ddf),
    (8, 0xffb2_d2ec_9d99_9b02),
    (9, 0xc656_1ad2_9198_0f78),
    (10, 0xefb3_2d0a_61fa_b7a5),
    (11, 0xf12a_3975_e29e_90af),
    (12, 0xaf85_3440_2172_bddd),
    (13, 0xb4c6_2828_8cba_df80),
    (14, 0x0be7_fd35_b8ae_7703),
];

#[test]
fn the_hash_of_the_current_version_is_published() {
    let (version, hash) = PUBLISHED[PUBLISHED.len() - 1];
    assert_eq!(version, ABI_VERSION);
    assert_eq!(hash, ABI_HASH, "the layouts changed: {ABI_HASH:#018x}");
    assert!((1..=ABI_VERSION).contains(&ABI_MIN_VERSION));
}

#[test]
fn discriminants_are_fixed() {
    let statuses: Vec<(u32, &str)> = ReceiveStatus::ALL
        .iter()
        .map(|s| {
            let name = match s {
                ReceiveStatus::Idle => "idle",
                ReceiveStatus::Armed => "armed",
                ReceiveStatus::Complete => "complete",
                ReceiveStatus::ReceiveError => "receive error",
                ReceiveStatus::CopyError => "copy error",
                ReceiveStatus::InvalidOperation => "invalid operation",
                ReceiveStatus::UnexpectedOpcode => "unexpected opcode",
                ReceiveStatus::ControlError => "control error",
            };
            assert_eq!(ReceiveStatus::from_raw(*s as u32), Ok(*s));
            (*s as u32, name)
        })
        .collect();
    assert_eq!(
        statuses,
        [
            (0, "idle"),
            (1, "armed"),
            (2, "complete"),
            (3, "receive error"),
            (4, "copy error"),
            (5, "invalid operation"),
            (6, "unexpected opcode"),
            (7, "control error")
        ]
    );
    assert_eq!(ReceiveStatus::from_raw(8), Err(8));
    assert!(!ReceiveStatus::Complete.is_error() && ReceiveStatus::ReceiveError.is_error());

    let table = [
        (1, ContextFault::AbiHash),
        (2, ContextFault::Transport),
        (3, ContextFault::Batch),
        (4, ContextFault::Budget),
        (5, ContextFault::PsnBits),
        (6, ContextFault::Worker),
        (7, ContextFault::QueueAddress),
        (8, ContextFault::QueueDepth),
        (9, ContextFault::DeviceMemory),
        (10, ContextFault::Staging),
        (11, ContextFault::HostAddress),
        (12, ContextFault::Chunks),
        (13, ContextFault::ChunkBytes),
        (14, ContextFault::CollectiveId),
        (15, ContextFault::NotPrepared),
        (16, ContextFault::Outbox),
        (17, ContextFault::Window),
        (18, ContextFault::Contexts),
        (19, ContextFault::Runs),
        (20, ContextFault::Rows),
        (21, ContextFault::OwnChunks),
        (22, ContextFault::Flags),
        (23, ContextFault::DeadQueue),
    ];
    assert_eq!(table.len(), ContextFault::ALL.len());
    for (raw, fault) in table {
        assert_eq!(ContextFault::from_raw(raw), Ok(fault));
    }
    assert_eq!(ContextFault::from_raw(0), Err(0));
    let sends = [
        (0, SendStatus::Idle),
        (1, SendStatus::Sending),
        (2, SendStatus::Finished),
        (3, SendStatus::Closed),
        (4, SendStatus::SendError),
        (5, SendStatus::InvalidOperation),
        (6, SendStatus::ControlError),
        (7, SendStatus::UnexpectedOpcode),
    ];
    assert_eq!(sends.len(), SendStatus::ALL.len());
    for (raw, status) in sends {
        assert_eq!(SendStatus::from_raw(raw), Ok(status));
        assert_eq!(status.is_error(), raw >= 4);
    }
    assert_eq!(SendStatus::from_raw(8), Err(8));
    let statuses = [
        (0, ProgressThreadStatus::Running),
        (1, ProgressThreadStatus::ControlError),
        (2, ProgressThreadStatus::InvalidCommand),
    ];
    assert_eq!(statuses.len(), ProgressThreadStatus::ALL.len());
    for (raw, status) in statuses {
        assert_eq!(ProgressThreadStatus::from_raw(raw), Ok(status));
    }
    assert_eq!(Transport::from_raw(1), Ok(Transport::Uc));
    assert_eq!(Transport::from_raw(2), Ok(Transport::Ud));
    assert_eq!(Transport::from_raw(3), Err(3));
}

/// Hash of the context of image `sparse`, which covers all that it leads to but reports and operations of the same
/// size. No host drives an image of another one.
#[test]
fn layouts_of_image_sparse_are_those_of_this_version() {
    assert_eq!(SparseThread::HASH, 0x9293_193f_a415_da0f, "the layouts changed: {:#018x}", SparseThread::HASH);
    assert_eq!(SparseReport::HASH, 0xa2e0_311e_f3c3_657d, "the layout changed: {:#018x}", SparseReport::HASH);
    let bytes = [
        size_of::<SparseThread>(),
        size_of::<SparseThreadState>(),
        size_of::<SparseInstance>(),
        size_of::<SparseInstanceState>(),
        size_of::<SparsePeer>(),
        size_of::<SparseOperation>(),
        size_of::<SparseReport>(),
    ];
    assert_eq!(bytes, [192, 64, 384, 320, 128, 64, 64]);
    assert_eq!((offset_of!(SparseThread, state), offset_of!(SparseInstance, state)), (128, 64));
    assert_eq!((offset_of!(SparseInstanceState, lists), offset_of!(SparseReport, status)), (64, 0));
    let statuses = [
        (0, SparseStatus::Running),
        (1, SparseStatus::Length),
        (2, SparseStatus::Displacement),
        (3, SparseStatus::Order),
        (4, SparseStatus::Behind),
        (5, SparseStatus::AfterEnd),
        (6, SparseStatus::Element),
        (7, SparseStatus::Opcode),
        (8, SparseStatus::Connection),
    ];
    assert_eq!(statuses.len(), SparseStatus::ALL.len());
    for (raw, status) in statuses {
        assert_eq!(SparseStatus::from_raw(raw), Ok(status));
    }
    assert_eq!(SparseElement::from_raw(1), Ok(SparseElement::I32));
    assert_eq!(SparseElement::from_raw(2), Ok(SparseElement::I64));
    assert_eq!(SparseElement::from_raw(3), Err(3));
}

#[test]
fn writers_have_lines_of_their_own() {
    assert_eq!(offset_of!(ReceiveContext, state) % 64, 0);
    assert_eq!(offset_of!(ReceiveReport, statistics) % 64, 0);
    assert_eq!(offset_of!(ReceiveThread, state) % 64, 0);
    assert_eq!((offset_of!(SendThread, state) % 64, offset_of!(SendContext, state) % 64), (0, 0));
    assert_eq!(offset_of!(ProgressThread, state) % 64, 0);
    assert_eq!(size_of::<ProgressCommand>(), COMMAND_BYTES);
    assert_eq!(offset_of!(ProgressCommand, sequence_check), COMMAND_BYTES - 8);
    // What the host rewrites is in lines of its own, outside of the contexts.
    for bytes in [size_of::<Operation>(), size_of::<Placement>(), size_of::<SendOperation>(), size_of::<SendRun>()] {
        assert_eq!(bytes, 64);
    }
    for bytes in [
        size_of::<CompletionFlag>(),
        size_of::<ProgressLine>(),
        size_of::<GroupContext>(),
        size_of::<ReceiveState>(),
        size_of::<PingPongContext>(),
        size_of::<OperationState>(),
        size_of::<SendReport>(),
        size_of::<Signals>(),
        size_of::<ProgressPeer>(),
        size_of::<ProgressReport>(),
        size_of::<ProgressDetail>(),
        size_of::<ProgressCommand>(),
        size_of::<ProgressReads>(),
        size_of::<ReceiveView>(),
    ] {
        assert_eq!(bytes % 64, 0);
    }
}

#[test]
fn different_types_have_different_hashes() {
    let mut hashes = [
        ReceiveContext::HASH,
        GroupContext::HASH,
        CompletionFlag::HASH,
        PingPongContext::HASH,
        ReceiveThread::HASH,
        RunRow::HASH,
        SendThread::HASH,
        SendContext::HASH,
        SendReport::HASH,
        ProgressThread::HASH,
        ProgressPeer::HASH,
        Signals::HASH,
        ReceiveView::HASH,
        ProgressLine::HASH,
        u64::HASH,
        <[u64; 7]>::HASH,
        CompletionQueueMemory::HASH,
        ReceiveQueueMemory::HASH,
        SendQueueMemory::HASH,
        BitmapMemory::HASH,
        MessageMemory::HASH,
        TableMemory::<u64>::HASH,
        TableMemory::<RunRow>::HASH,
        ContextMemory::<RunRow>::HASH,
        HostLine::<u64>::HASH,
        HostLine::<Operation>::HASH,
        Shared::<u64>::HASH,
    ];
    hashes.sort_unstable();
    assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
}

/// Structures of one's own: what the derive hashes.
mod own {
    use flexcast_abi::Layout;

    #[derive(Layout)]
    #[repr(C)]
    pub(crate) struct Job {
        pub(crate) count: u32,
        pub(crate) limit: u32,
        pub(crate) at: u64,
    }

    pub(crate) mod renamed_field {
        #[derive(flexcast_abi::Layout)]
        #[repr(C)]
        pub(crate) struct Job {
            pub(crate) count: u32,
            pub(crate) bound: u32,
            pub(crate) at: u64,
        }
    }

    pub(crate) mod other_order {
        #[derive(flexcast_abi::Layout)]
        #[repr(C)]
        pub(crate) struct Job {
            pub(crate) at: u64,
            pub(crate) count: u32,
            pub(crate) limit: u32,
        }
    }

    pub(crate) mod other_type {
        #[derive(flexcast_abi::Layout)]
        #[repr(C)]
        pub(crate) struct Job {
            pub(crate) count: u32,
            pub(crate) limit: i32,
            pub(crate) at: u64,
        }
    }

    pub(crate) mod aligned {
        #[derive(flexcast_abi::Layout)]
        #[repr(C, align(16))]
        pub(crate) struct Job {
            pub(crate) count: u32,
            pub(crate) limit: u32,
            pub(crate) at: u64,
        }
    }

    pub(crate) mod elsewhere {
        use flexcast_abi as again;

        #[derive(again::Layout)]
        #[layout(crate = again)]
        #[repr(C)]
        pub(crate) struct Job {
            pub(crate) count: core::primitive::u32,
            pub(crate) limit: u32,
            pub(crate) at: u64,
        }
    }
}

#[test]
fn a_derived_hash_depends_on_names_order_types_and_alignment_and_not_on_where_it_was_written() {
    let hash = own::Job::HASH;
    let others = [
        own::renamed_field::Job::HASH,
        own::other_order::Job::HASH,
        own::other_type::Job::HASH,
        own::aligned::Job::HASH,
    ];
    assert!(others.iter().all(|other| *other != hash), "{hash:#x} {others:#x?}");
    assert_eq!(own::elsewhere::Job::HASH, hash);
}

#[test]
fn bring_up_depends_on_argument_and_abi() {
    assert_ne!(bring_up_answer(0), bring_up_answer(1));
    assert_ne!(bring_up_answer(ABI_HASH), bring_up_answer(0));
    assert_eq!(FLAG_MAGIC as u32, 0, "the low half is the sequence number's");
}

#[test]
fn words_of_rpcs_stand_for_one_value_each() {
    type Prepared = Result<(), ContextRefusal>;
    assert_eq!(bool::from_word(1), Some(true));
    assert_eq!((bool::from_word(2), u32::from_word(1 << 32), Activation::from_word(2)), (None, None, None));
    assert_eq!([0, 1].map(Activation::from_word), [Some(Activation::Woken), Some(Activation::Refused)]);
    assert_eq!((Prepared::from_word(0), Prepared::from_word(3 << 32)), (Some(Ok(())), None));
    let refusal = ContextRefusal { part: 3, code: ContextFault::Outbox as u32 };
    assert_eq!(Prepared::from_word(3 << 32 | 16), Some(Err(refusal)));
    assert_eq!((refusal.fault(), ContextRefusal { part: 0, code: 999 }.fault()), (Some(ContextFault::Outbox), None));
    let context = ContextAddress::<ReceiveThread>::new(DeviceAddress::new(0x40));
    assert_eq!((context.to_word(), 7_u32.to_word(), true.to_word()), (0x40, 7, 1));
}

#[test]
fn arguments_of_rpcs_have_the_hash_that_images_record() {
    fn hash<A: RpcArgument, R: RpcAnswer>(_: &Rpc<A, R>) -> u64 {
        A::LAYOUT_HASH
    }
    assert_eq!(hash(&PREPARE_RECEIVE), ReceiveThread::HASH);
    assert_eq!([hash(&BRING_UP), hash(&ACTIVATE)], [<u64 as Layout>::HASH; 2]);
}
