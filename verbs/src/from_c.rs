//! The Rust name of each call of libibverbs. This module contains no code.
//!
//! | C | Rust |
//! |---|---|
//! | `ibv_open_device` | [`Device::open`](crate::Device::open) |
//! | `ibv_query_device`, `ibv_query_port`, `ibv_query_gid` | [`Device::query`](crate::Device::query), [`Device::opened`](crate::Device::opened) |
//! | `ibv_alloc_pd` | [`Device::allocate_pd`](crate::Device::allocate_pd) |
//! | `ibv_reg_mr` | [`MemoryRegion::alloc`](crate::MemoryRegion::alloc), which also owns the memory |
//! | `ibv_create_cq`, `ibv_resize_cq` | [`Device::create_cq`](crate::Device::create_cq), [`CompletionQueue::resize`](crate::CompletionQueue::resize) |
//! | `ibv_poll_cq` | [`CompletionQueue::poll`](crate::CompletionQueue::poll), [`wait`](crate::CompletionQueue::wait) |
//! | `ibv_wc_status`, `ibv_wc_status_str` | [`Completion::ok`](crate::Completion::ok), [`CompletionStatus`](crate::CompletionStatus) |
//! | `ibv_create_comp_channel` | [`Device::create_channel`](crate::Device::create_channel) |
//! | `ibv_req_notify_cq` | [`CompletionQueue::arm`](crate::CompletionQueue::arm) |
//! | `ibv_get_cq_event` | [`CompletionChannel::wait`](crate::CompletionChannel::wait) |
//! | `ibv_create_qp` | [`ProtectionDomain::queue_pair`](crate::ProtectionDomain::queue_pair) |
//! | `IBV_QPT_RC`, `IBV_QPT_UC`, `IBV_QPT_UD` | [`Rc`](crate::service::Rc), [`Uc`](crate::service::Uc), [`Ud`](crate::service::Ud) |
//! | `ibv_modify_qp` to RTS | [`QueuePair::connect`](crate::QueuePair::connect); of datagrams [`QueuePair::open`](crate::QueuePair::open) |
//! | `ibv_modify_qp` step by step | [`QueuePair::modify`](crate::QueuePair::modify) |
//! | `ibv_query_qp` | [`QueuePair::query`](crate::QueuePair::query) |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`](crate::QueuePair::post_send), [`QueuePair::post_recv`](crate::QueuePair::post_recv) |
//! | `ibv_create_srq` | [`ProtectionDomain::shared_receive_queue`](crate::ProtectionDomain::shared_receive_queue) |
//! | `ibv_create_ah` | [`ProtectionDomain::address`](crate::ProtectionDomain::address) |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`ProtectionDomain::memory_window`](crate::ProtectionDomain::memory_window), [`SendRequest::bind`](crate::SendRequest::bind) |
//! | `ibv_open_xrcd` | [`Device::xrc_domain`](crate::Device::xrc_domain) |
//! | `ibv_get_async_event` | [`Device::events`](crate::Device::events) |
//! | `ibv_dealloc_*`, `ibv_dereg_mr`, `ibv_destroy_*`, `ibv_close_device` | drop the value |
