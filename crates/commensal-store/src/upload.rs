//! Writes that are charged to a query. The query pays for bytes before they are written: it reserves them with the rate
//! limiter of its governor, and waits until they are granted.

use crate::query::Query;
use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

/// Waits until `bytes` may be written. The bytes are charged even if the write fails afterwards, because the number of
/// bytes written before the failure is unknown.
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

/// A multipart upload that pays for each part before it sends the part.
#[derive(Debug)]
pub(crate) struct GovernedUpload {
    pub(crate) upload: Box<dyn MultipartUpload>,
    pub(crate) writes: Query,
}

#[async_trait]
impl MultipartUpload for GovernedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // Parts are numbered in the order of these calls, so the inner future is created now. The future transfers
        // nothing until it is polled.
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
