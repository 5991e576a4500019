//! Jobs without a server: all processes are workers that average their parameters in groups.

use super::transports::flatten;
use super::{Job, JobError, MemberRole};
use crate::node::{GroupMember, GroupOptions};
use crate::transport::mixed::Mixed;

impl Job {
    /// Meets all workers of a job without a server (`JobPlan::servers(0)`), each with `elements` parameters, within the
    /// plan's timeout. The rank of this member is the number of this worker.
    ///
    /// Call [`finish`](Self::finish) once [`GroupMember::leave`] has returned.
    ///
    /// # Errors
    /// The plan has servers ([`JobError::HasServers`]), a worker does not come up in time, `elements` or `options`
    /// differ between workers, or the job fails meanwhile.
    pub fn group(&self, elements: usize, options: GroupOptions) -> Result<GroupMember<Mixed>, JobError> {
        if self.plan.servers > 0 {
            return Err(JobError::HasServers { servers: self.plan.servers });
        }
        let address = self.member.transports.listen_at(&self.plan.transports()).map_err(JobError::NoRdma)?;
        let (rank, workers) = (self.rank as usize, self.workers());
        let listener =
            GroupMember::listen(self.member.transports.open(), &address, rank, workers, elements, options)?;
        self.member.announce(flatten(listener.address()));
        let addresses = self.reach(MemberRole::Worker, workers, self.plan.timeout)?;
        listener.connect(&addresses, self.plan.timeout).map_err(|error| self.cause(error))
    }
}
