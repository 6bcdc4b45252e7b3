//! Charged writes: uploads in parts.

use crate::query::Query;
use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

/// Waits until `bytes` may be written. They count as moved even if the write fails, since it is unknown how much was
/// written.
pub(crate) async fn pay_for_write(writes: &Query, bytes: usize) -> Result<()> {
    let mut left = bytes as u64;
    writes.asked(left);
    while left > 0 {
        let piece = left.min(writes.piece().unwrap_or(u64::MAX));
        writes.pay(piece).await?.spend(piece);
        left -= piece;
    }
    Ok(())
}

/// An upload whose parts are paid for before they are sent.
#[derive(Debug)]
pub(crate) struct GovernedUpload {
    pub(crate) upload: Box<dyn MultipartUpload>,
    pub(crate) writes: Query,
}

#[async_trait]
impl MultipartUpload for GovernedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // The order of these calls is the order of the parts, so the inner future is created now; it moves nothing
        // until polled.
        let bytes = data.content_length();
        let part = self.upload.put_part(data);
        let writes = self.writes.clone();
        Box::pin(async move {
            pay_for_write(&writes, bytes).await?;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
